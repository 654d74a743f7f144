"""A host in a box: an ssh server on loopback with a fresh home, for the demonstration and for the tests."""
