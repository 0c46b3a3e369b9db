"""Trains a BERT with Hugging Face's Trainer, and resumes as the examples of transformers do (``run_glue.py``).

The model is tiny and starts from nothing, the data is made up: a sentence is of the class that its first word says.
"""

from __future__ import annotations

import os

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from watch import began, finished, step_ended


class Watch(TrainerCallback):
    """Tells where the training is."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        began(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        step_ended(state.global_step)


def main() -> None:
    """Train, from the newest checkpoint in the output directory if there is one."""
    parser = HfArgumentParser(TrainingArguments)
    (training_args,) = parser.parse_args_into_dataclasses()

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)

    set_seed(training_args.seed)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    sentences = torch.randint(0, config.vocab_size, (64, 8))
    train_dataset = [{"input_ids": words, "labels": words[0] % config.num_labels} for words in sentences]

    trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset, callbacks=[Watch()])
    train_result = trainer.train(resume_from_checkpoint=last_checkpoint)
    trainer.save_model()
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()


if __name__ == "__main__":
    main()
    finished()
