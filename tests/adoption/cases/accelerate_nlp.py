"""accelerate's loop for a classifier: warm-up, clipping, the loss summed before backward, an evaluation per epoch."""

import torch
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

# ---- plain
from accelerate import Accelerator

# ---- hyperpod
from jupyter_hyperpod.integrations.accelerate import Accelerator
# ---- both


def collate(examples):
    words = torch.stack([example["input_ids"] for example in examples])
    return {"input_ids": words, "labels": torch.tensor([example["label"] for example in examples])}


def training_function(config):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    set_seed(config["seed"])
    words = torch.randint(0, 40, (48, 6))
    samples = [{"input_ids": row, "label": int(row.sum() % 2)} for row in words]
    train_dataloader = DataLoader(samples[:40], shuffle=True, collate_fn=collate, batch_size=config["batch_size"])
    eval_dataloader = DataLoader(samples[40:], collate_fn=collate, batch_size=4)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=2, **sizes)).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer, num_warmup_steps=3, num_training_steps=len(train_dataloader) * config["num_epochs"]
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    completed_steps, history = 0, []
    for epoch in range(config["num_epochs"]):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_dataloader):
            batch = {key: value.to(accelerator.device) for key, value in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            completed_steps += 1
        model.eval()
        correct, count = 0, 0
        for step, batch in enumerate(eval_dataloader):
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
            correct += (predictions == references).sum()
            count += len(references)
        history.append((total_loss.item() / len(train_dataloader), norm.item(), correct.item() / count))
        accelerator.print(f"epoch {epoch}: {history[-1]}")
    accelerator.end_training()
    print("result", completed_steps, lr_scheduler.get_last_lr(), history)


if __name__ == "__main__":
    training_function({"lr": 1e-3, "num_epochs": 4, "seed": 3, "batch_size": 8})
