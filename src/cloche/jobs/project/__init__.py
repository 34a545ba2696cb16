"""What is read of a project, and checked: its files, manifests, settings, lockfile and steps."""
