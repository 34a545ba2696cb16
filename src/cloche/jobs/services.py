"""Services beside a step's command: started in its box before it, and ended with it.

They are children of the shell in whose place the command then runs: the end of the command is the
end of the box's processes, so nothing has to stop them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloche.model.job import Service

EXIT_NOT_READY: Final = 125
"""The exit code of a step whose service did not come up. Source: docker-run(1) has it for that."""

# A connection to the port is the proof. What a service writes is marked with its name.
_SERVE: Final = f"""\
serve() {{
  local name=$1 port=$2 end=$((${{EPOCHREALTIME/./}} + $3 * 1000))
  shift 3
  "$@" </dev/null 2>&1 | sed -u "s/^/[$name] /" &
  until (exec 9<>"/dev/tcp/127.0.0.1/$port" || exec 9<>"/dev/tcp/::1/$port") 2>/dev/null; do
    if ! kill -0 $! 2>/dev/null; then
      echo "the service $name ended before it listened on port $port" >&2
      exit {EXIT_NOT_READY}
    elif [ "${{EPOCHREALTIME/./}}" -ge "$end" ]; then
      echo "the service $name did not listen on port $port in time" >&2
      exit {EXIT_NOT_READY}
    fi
    sleep 0.05
  done
}}
"""


def with_services(services: Sequence[Service], argv: Sequence[str]) -> tuple[str, ...]:
    """A command that starts the services, waits for their ports, and becomes `argv`.

    Args:
        services: In the order of their starts; checked.
        argv: The command of the step; its first word is a program's path.
    """
    lines, arguments = [_SERVE], list[str]()
    for service in services:
        command = service.argv or ("bash", "-eo", "pipefail", "-c", service.shell or "")
        variables = [f"{name}={text}" for name, text in service.env.items()]
        words = ("env", *variables, *command)
        # Nothing of a command is ever text of the script: all of it are arguments, taken in turn.
        told = f"{service.name} {service.port} {service.ready_timeout_ms}"
        lines.append(f'serve {told} "${{@:1:{len(words)}}}"; shift {len(words)}')
        arguments += words
    lines.append('exec "$@"')
    return ("/usr/bin/bash", "-c", "\n".join(lines), "bash", *arguments, *argv)
