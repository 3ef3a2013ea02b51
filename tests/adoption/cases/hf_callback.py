"""A subclass of the Trainer of transformers, and a callback that holds it and its arguments."""

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments

# ---- plain
from transformers import Trainer

# ---- hyperpod
from jupyter_hyperpod.integrations.transformers import Trainer
# ---- both

transformers.logging.set_verbosity_error()
torch.manual_seed(3)
config = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
model = BertForSequenceClassification(config)
words = torch.randint(0, 40, (48, 6))
samples = [{"input_ids": row, "labels": int(row.sum() % 2)} for row in words]
arguments = TrainingArguments(
    output_dir="runs", per_device_train_batch_size=8, gradient_accumulation_steps=1, num_train_epochs=4,
    learning_rate=1e-3, lr_scheduler_type="constant", max_grad_norm=0.5, logging_steps=4, eval_strategy="epoch",
    save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, seed=7,
)  # fmt: skip


class Smoothed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        outputs = model(**inputs)
        loss = 0.9 * outputs.loss + 0.1 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


class Patience(TrainerCallback):
    """Halves the learning rate where the loss of the evaluation has not fallen."""

    def __init__(self, trainer, arguments):
        self.trainer, self.arguments = trainer, arguments
        self.best, self.halved = float("inf"), []

    def on_evaluate(self, args, state, control, metrics=None, **more):
        if metrics["eval_loss"] < self.best - 0.004:
            self.best = metrics["eval_loss"]
        else:
            self.halved.append(state.global_step)
            for group in self.trainer.optimizer.param_groups:
                group["lr"] *= 0.5 if self.arguments.max_grad_norm else 1.0


trainer = Smoothed(model=model, args=arguments, train_dataset=samples[:40], eval_dataset=samples[40:])
trainer.add_callback(watch := Patience(trainer, arguments))
output = trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
evaluations = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
print("result", trainer.state.global_step, output.training_loss, losses, evaluations, watch.halved)
