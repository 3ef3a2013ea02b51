"""The Trainer of transformers on a classifier: warm-up, clipping, accumulation, evaluation, log of the loss."""

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

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
    learning_rate=1e-3, warmup_steps=3, max_grad_norm=0.5, logging_steps=4, eval_strategy="epoch", save_strategy="no",
    report_to="none", use_cpu=True, disable_tqdm=False, seed=7,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=samples[:40], eval_dataset=samples[40:])
output = trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
evaluations = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
print("result", trainer.state.global_step, output.training_loss, losses, evaluations, trainer.evaluate()["eval_loss"])
