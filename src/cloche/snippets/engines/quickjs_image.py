"""Makes the machine that runs JavaScript: QuickJS with the prelude evaluated, as a module.

The engine that the package brings is started once, the prelude is evaluated in it, and what its
memory then holds becomes the initial memory of a new module (see `binary`). Every run gets an
instance of that one (see `machine`), in which nothing has to be initialised.

Three things that the engine's exports do not give are set up on the way. Where they are is found
by experiment each time the image is made, and one that is not found as expected is an error:

- *The stack limit.* For this target the engine leaves it at zero, and deep recursion would hit
  the wall. It stands behind the size that `set_max_stack_size` leaves in the runtime's record.
- *Rejected promises.* The engine tells about one without a handler through a function pointer
  that follows in the same record. The new module has one more function, which passes what it is
  told to `host_call`.
- *The state of Math.random*, which has to be new for each run; and *errno*, which tells that an
  allocation was refused.
"""

from __future__ import annotations

import hashlib
import os
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import wasmtime

from . import binary
from .binary import I32, I64, Binary
from .machine import Instance, Machine, configure

# Source: quickjs_rs 0.2.6; another build of the engine may keep things in other places.
GUEST_SHA256 = "647ab11ae29cc6d39a6d17d3aa1e7a6a0b5fb9c44b4864475a18bc644f926050"
PRELUDE_FILES = (
    "prelude.js",
    "prelude_failure.js",
    "prelude_inspect.js",
    "prelude_console.js",
    "prelude_web.js",
    "prelude_clone.js",
    "prelude_url.js",
    "prelude_abort.js",
    "prelude_headers.js",
    "prelude_fetch.js",
    "prelude_locale.js",
)
HOST_FUNCTIONS = ("settled", "starved", "end", "wait", "map", "out", "call", "encode", "decode",
                  "random", "fetch", "body", "drop")  # fmt: skip
# Left below the engine's limit, for C functions that do not look at it: of 1 MiB in all. What
# goes through all the same runs into address 0, which is the end of that instance.
STACK_RESERVE_BYTES = 96 * 1024
ENOMEM = 48  # Source: wasi_snapshot_preview1
# Offsets in the runtime's record from its field stack_size. Source: quickjs.c, struct JSRuntime.
STACK_TOP, STACK_LIMIT, REJECTION_TRACKER, JOB_LIST = 4, 8, 0x34, 0x3C
_MARK_BYTES = 0x7FEDC  # a stack size that nothing else is likely to be
_XORSHIFT_MASK = (1 << 64) - 1


class Places(NamedTuple):
    """Addresses and handles in a new instance."""

    begin: int  # handles of the prelude's functions
    turn: int
    rejected: int
    undefined: int  # a handle
    reason: int  # a handle whose value is put in by address: 8 bytes
    slots: int  # 16 bytes for parameters and results
    random_state: int  # 8 bytes, never all zero
    errno: int
    size_bytes: int  # of the memory at the start


def read_engine() -> bytes:
    """Return the engine as the package brings it.

    Raises:
        ValueError: It is not the build that is known here.
    """
    found = find_spec("quickjs_rs")  # which is not imported: nothing else of it is needed
    if found is None or found.origin is None:
        raise ValueError("quickjs_rs is not installed")
    data = Path(found.origin).with_name("_guest.wasm").read_bytes()
    if hashlib.sha256(data).hexdigest() != GUEST_SHA256:
        raise ValueError("quickjs_rs is not of the release 0.2.6, which is the one known here")
    return data


def read_prelude() -> str:
    """Return the text of the one function that the prelude is."""
    here = Path(__file__).parent
    bodies = [(here / name).read_text("utf-8") for name in PRELUDE_FILES]
    bodies = ['"use strict";', *bodies, "return [begin, turn, rejected];"]
    return "(function (host) {\n" + "\n".join(bodies) + "\n})"


def make_module() -> bytes:
    """Return the module (WebAssembly, not compiled) that each run gets an instance of."""
    engine = configure(optimise=False)
    module = Binary(read_engine())
    tracker = _add_tracker(module)
    machine = Machine(engine, wasmtime.Module(engine, module.assemble()))
    instance = machine.start()
    try:
        places = _initialise(instance, tracker)
        module.set_memory(instance.read(0, places.size_bytes))
    finally:
        instance.close()
        machine.close()
    for name, number in places._asdict().items():
        module.export_number(f"at_{name}", number)
    return module.assemble()


def places_of(instance: Instance) -> Places:
    """Return what `make_module` has put into the module of `instance`."""
    return Places(*(instance.read_export(f"at_{name}") for name in Places._fields))


def evaluate(instance: Instance, text: str) -> int:
    """Evaluate a script; return the handle of its value."""
    pointer, length = put(instance, text.encode())
    out = instance.call("qjs_alloc", 4)
    status = instance.call("eval_code", pointer, length, out)
    if status:
        instance.call("last_exception", out)
        message = _text_of(instance, instance.read_number(out))
        raise ValueError(f"the prelude is wrong: {message}")
    return instance.read_number(out)


def put(instance: Instance, data: bytes) -> tuple[int, int]:
    """Copy `data` into memory of its own; return where it is and its length."""
    pointer = instance.call("qjs_alloc", len(data))
    if not pointer and data:
        raise MemoryError
    instance.write(pointer, data)
    return pointer, len(data)


def _add_tracker(module: Binary) -> int:
    """Add the function that hears of rejected promises; return its place in the table.

    Its parameters are JSContext *, promise, reason, is_handled, void *. It calls
    host_call(promise, -1 - is_handled, low word of reason, high word of reason, 0).
    """
    low_word = b"\xa7"  # i32.wrap_i64
    high_word = b"\x42\x20\x88" + low_word  # i64.const 32, i64.shr_u
    host_call = binary.unsigned(module.imports().index("host_call"))
    code = (
        b"\x20\1" + low_word
        + b"\x41\x7f\x20\3\x6b"  # i32.const -1, is_handled, i32.sub
        + b"\x20\2" + low_word
        + b"\x20\2" + high_word
        + b"\x41\0"
        + b"\x10" + host_call
        + b"\x1a"  # drop
    )  # fmt: skip
    return module.add_function(bytes([I32, I64, I64, I32, I32]), code)


def _initialise(instance: Instance, tracker: int) -> Places:
    instance.call("set_max_stack_size", _MARK_BYTES)
    host = _make_host(instance)
    functions = evaluate(instance, read_prelude() + f"({host})")
    evaluate(instance, f"delete globalThis.{host}")
    slots = instance.call("qjs_alloc", 16)
    begin, turn, rejected = (_element(instance, functions, index, slots) for index in range(3))
    undefined = instance.call("new_undefined")
    reason = instance.call("new_null")
    if instance.read(reason, 8) != struct.pack("<II", 0, 2):  # the tag of null
        raise ValueError("handles are not as expected")
    instance.call("run_gc")
    record = _find_record(instance)
    instance.write(record + STACK_LIMIT, struct.pack("<I", STACK_RESERVE_BYTES))
    instance.write(record + REJECTION_TRACKER, struct.pack("<I", tracker))
    random_state = _find_random_state(instance)
    errno = _find_errno(instance)
    instance.write(errno, bytes(4))
    size = instance.size()
    return Places(begin, turn, rejected, undefined, reason, slots, random_state, errno, size)


def _make_host(instance: Instance) -> str:
    """Put an object with the host's functions into a global; return the global's name."""
    host = evaluate(instance, "globalThis.__host = { __proto__: null }")
    for name in HOST_FUNCTIONS:
        pointer, length = put(instance, name.encode())
        function = instance.call("new_function", pointer, length)
        instance.call("set_prop", host, pointer, length, function)
    return "__host"


def _element(instance: Instance, array: int, index: int, slots: int) -> int:
    if instance.call("get_index", array, index, slots):
        raise ValueError("the prelude gives no functions")
    return instance.read_number(slots)


def _text_of(instance: Instance, handle: int) -> str:
    if instance.call("get_string", handle):
        return "something that is no text"
    text = instance.read(instance.call("qjs_last_ptr"), instance.call("qjs_last_len"))
    return text.decode("utf-8", "replace")


def _find_record(instance: Instance) -> int:
    """Return where the runtime's record keeps the stack size."""
    memory = instance.read(0, instance.size())
    mark = struct.pack("<I", _MARK_BYTES)
    found = []
    place = -1
    while (place := memory.find(mark, place + 1)) >= 0:
        top, limit = struct.unpack_from("<II", memory, place + STACK_TOP)
        jobs = struct.unpack_from("<II", memory, place + JOB_LIST)
        if 0x80000 < top <= 0x100000 and limit == 0 and jobs == (place + JOB_LIST,) * 2:
            found.append(place)
    if len(found) != 1:
        raise ValueError("the runtime's record is not as expected")
    return found[0]


def _find_random_state(instance: Instance) -> int:
    before = instance.read(0, instance.size())
    evaluate(instance, "Math.random()")
    after = instance.read(0, len(before))
    found = []
    for place in range(0, len(before) - 7, 8):
        if before[place : place + 8] == after[place : place + 8]:
            continue
        (state,) = struct.unpack_from("<Q", before, place)
        state ^= state >> 12
        state ^= state << 25 & _XORSHIFT_MASK
        state ^= state >> 27
        if struct.unpack_from("<Q", after, place)[0] == state:
            found.append(place)
    if len(found) != 1:
        raise ValueError("the state of Math.random is not as expected")
    return found[0]


def _find_errno(instance: Instance) -> int:
    """Return where the C library notes that there was no memory.

    The same request is refused twice, so that nothing else than errno differs from a state in
    which it was put to zero by hand.
    """
    instance.limit_memory(instance.size())

    def refuse() -> bytes:
        evaluate(instance, "try { new ArrayBuffer(1 << 29) } catch {}")
        return instance.read(0, instance.size())

    first = refuse()
    value = struct.pack("<I", ENOMEM)
    found = []
    place = -1
    while (place := first.find(value, place + 1)) >= 0:
        if place % 4:
            continue
        instance.write(place, bytes(4))
        if refuse()[place : place + 4] == value:
            found.append(place)
        else:
            instance.write(place, value)
    instance.limit_memory(-1)
    if len(found) != 1:
        raise ValueError("errno is not as expected")
    return found[0]


def fresh_random_state() -> bytes:
    """Return a state for Math.random that no other run has."""
    return os.urandom(7) + b"\1"
