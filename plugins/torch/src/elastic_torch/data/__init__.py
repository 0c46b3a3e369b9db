"""What a training draws its samples with, and the proof that each of them was used once. Nothing is imported here."""
