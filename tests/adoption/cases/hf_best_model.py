"""A Trainer with a loss of its own, early stopping, and the best of its models loaded at the end."""

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, TrainingArguments

# ---- plain
from transformers import Trainer

# ---- hyperpod
from jupyter_hyperpod.integrations.transformers import Trainer
# ---- both

transformers.logging.set_verbosity_error()
torch.manual_seed(4)
config = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
model = BertForSequenceClassification(config)
words = torch.randint(0, 40, (56, 6))
samples = [{"input_ids": row, "labels": int(row.sum() % 2)} for row in words]


class Smoothed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss


arguments = TrainingArguments(
    output_dir="runs", per_device_train_batch_size=8, num_train_epochs=5, learning_rate=2e-2,
    eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, load_best_model_at_end=True,
    metric_for_best_model="eval_loss", report_to="none", use_cpu=True, disable_tqdm=True, seed=7,
)  # fmt: skip
trainer = Smoothed(
    model=model, args=arguments, train_dataset=samples[:40], eval_dataset=samples[40:],
    callbacks=[EarlyStoppingCallback(2)],
)  # fmt: skip
trainer.train()
weights = sum(parameter.double().abs().sum().item() for parameter in trainer.model.parameters())
print("result", trainer.state.global_step, trainer.state.best_metric, weights, trainer.evaluate()["eval_loss"])
