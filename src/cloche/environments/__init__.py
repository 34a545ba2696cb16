"""What a box's root is made of: the host's runtimes, and the read-only trees around them."""
