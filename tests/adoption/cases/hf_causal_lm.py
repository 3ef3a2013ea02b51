"""A causal language model with a padding collator: losses by tokens, masked labels, EarlyStopping, the best model."""

import torch
import transformers
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

# ---- plain
from transformers import Trainer

# ---- hyperpod
from jupyter_hyperpod.integrations.transformers import Trainer
# ---- both


class Texts(torch.utils.data.Dataset):
    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        start = int(torch.randint(0, 20, (1,), generator=generator))
        length = int(torch.randint(3, 9, (1,), generator=generator))
        return {"input_ids": [(start + k) % 20 for k in range(length)]}


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full((len(samples), longest), -100)
    for row, sample in enumerate(samples):
        words = torch.tensor(sample["input_ids"])
        ids[row, : len(words)] = words
        labels[row, : len(words)] = words
    return {"input_ids": ids, "labels": labels}


class Watch(TrainerCallback):
    def __init__(self):
        self.seen, self.rates = 0, []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen += 1
        if state.global_step % 5 == 0:
            self.rates.append(kwargs["lr_scheduler"].get_last_lr()[0])


transformers.logging.set_verbosity_error()
torch.manual_seed(11)
config = GPT2Config(vocab_size=20, n_positions=10, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    output_dir="runs", per_device_train_batch_size=4, num_train_epochs=5,
    gradient_accumulation_steps=3, learning_rate=5e-3, lr_scheduler_type="cosine", logging_steps=3, report_to="none",
    eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4, save_total_limit=2, use_cpu=True,
    load_best_model_at_end=True, metric_for_best_model="eval_loss", disable_tqdm=True, save_only_model=True,
)  # fmt: skip
watch = Watch()
trainer = Trainer(
    model=model, args=arguments, train_dataset=Texts(0, 60), eval_dataset=Texts(1000, 10), data_collator=collate,
    callbacks=[watch, EarlyStoppingCallback(early_stopping_patience=3)],
)  # fmt: skip
trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
total = sum(value.double().sum().item() for value in model.state_dict().values())
print("result", trainer.state.global_step, trainer.state.best_metric, watch.seen, watch.rates, losses, total)
