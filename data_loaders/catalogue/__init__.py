"""What is known about every set without opening a file."""
