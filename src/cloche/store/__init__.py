"""What is kept on the host's disk: nothing in it is believed because it was written here."""
