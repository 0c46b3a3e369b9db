"""What a training depends on, how it is taken apart, compared between ranks, agreed upon and set. Nothing is imported
here."""
