"""What tests are made with: fakes, shells, broken disks, and a SLURM cluster on loopback."""
