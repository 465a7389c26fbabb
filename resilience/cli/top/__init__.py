"""`resil top`: a live screen. frame.py composes it (pure), look.py gathers what it shows, screen.py is the terminal."""
