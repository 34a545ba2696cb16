"""What test runners say of themselves, counted."""
