"""The tests of resil; a package, so that tests can share their fixtures by import."""
