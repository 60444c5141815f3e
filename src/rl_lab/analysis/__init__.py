"""What runs have to say, read from their folders: query, compare, prove, report, clean up."""
