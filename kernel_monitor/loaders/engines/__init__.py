"""What computes the batches of a plan: the engines, and which of them can run here."""
