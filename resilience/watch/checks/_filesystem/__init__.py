"""How full a file system is, how long it lasts, and whether it is there at all: the parts of `fs` and `inodes`."""
