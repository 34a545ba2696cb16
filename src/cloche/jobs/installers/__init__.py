"""Package managers: what each reads of a project, and how it installs from it."""
