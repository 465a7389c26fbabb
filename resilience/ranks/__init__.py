"""What each rank of a running attempt does, and which one is odd: heartbeats, stacks, and the page that shows them."""
