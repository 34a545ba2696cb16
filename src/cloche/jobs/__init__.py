"""Jobs: from a bundle to verified artifacts."""
