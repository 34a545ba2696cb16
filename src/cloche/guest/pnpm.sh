#!/usr/bin/sh
# pnpm as a step's programs find it. Some that start it, Turborepo for one, hand on no variables of
# the step; without these it would fetch another pnpm, or install before it runs a script.
export pnpm_config_pm_on_fail="${pnpm_config_pm_on_fail-ignore}"
export pnpm_config_runtime_on_fail="${pnpm_config_runtime_on_fail-ignore}"
export pnpm_config_verify_deps_before_run="${pnpm_config_verify_deps_before_run-false}"
export pnpm_config_ignore_pnpmfile="${pnpm_config_ignore_pnpmfile-true}"
export pnpm_config_script_shell="${pnpm_config_script_shell-/usr/bin/sh}"
export pnpm_config_node_options="${pnpm_config_node_options-}"
export pnpm_config_shell_emulator="${pnpm_config_shell_emulator-false}"
export pnpm_config_update_notifier="${pnpm_config_update_notifier-false}"
exec /usr/lib/pnpm/pnpm "$@"
