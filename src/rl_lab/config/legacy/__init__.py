"""Keys of the earlier projects, renamed when such a file is loaded."""
