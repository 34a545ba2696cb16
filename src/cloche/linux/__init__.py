"""Everything that touches the kernel: cgroups, seccomp, files by descriptor, processes, probes."""
