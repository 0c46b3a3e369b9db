"""The training state: ``train_state`` has the public class. Nothing is imported here."""
