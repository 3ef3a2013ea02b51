"""Programs that take another object in the loop, late or each turn: a member that joins later takes its own of them.

Each runs in one process, and once more from a step at which a member joins. Most were quietly different once: they
change a callback's object, swap two names, replace a configuration, or read an attribute by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyter_hyperpod.runtime.worker.rehearse import rehearse

JOINS = (3, 4, 9, 13)  # steps, of 18 in 6 epochs
CELL = """# harmless
import copy, dataclasses, torch, jupyter_hyperpod as hp
from types import SimpleNamespace
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
class Stage:
    def __init__(self, weight):
        self.weight = weight
@dataclasses.dataclass
class Config:
    scale: float = 1.0
    depth: int = 2
class Trainer:
    pass
stages = [Stage(1.0), Stage(0.5), Stage(2.0)]
{setup}
def loss_function(batch):
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return {loss}
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for epoch in {epochs}:
        for step in session.steps(3):
            {pre}
            loss = step.run(loss_function)
            {post}
        {end}
print("kept", {kept})
"""


@dataclass(frozen=True)
class Row:
    """What a program has of its own. ``refused``: a newcomer cannot be given it, and is told so in words."""

    name: str
    setup: str = ""
    loss: str = "loss"
    pre: str = "pass"
    post: str = "pass"
    end: str = "pass"
    kept: str = "1"
    epochs: str = "session.epochs(6)"
    refused: bool = False


ROWS = (
    Row(
        "config_with_its_own_setattr",
        setup="""\
class Settings:
    def __init__(self, **values): self.__dict__['_values'] = values
    def __getattr__(self, name):
        try: return self.__dict__['_values'][name]
        except KeyError: raise AttributeError(name) from None
    def __setattr__(self, name, value): self._values[name] = value
settings=Settings(scale=1.0)""",
        loss="loss*settings.scale",
        end="settings.scale *= 0.9",
        kept="settings.scale",
    ),
    Row(
        "attribute_of_a_member_of_an_enum",
        setup="""\
import enum
class Kind(enum.Enum):
    A = 'a'
Kind.A.scale = 1.0""",
        loss="loss*Kind.A.scale",
        end="Kind.A.scale *= 0.9",
        kept="Kind.A.scale",
    ),
    Row(
        "buffer_that_was_none",
        setup="model.register_buffer('mask', None)",
        loss="loss*(1.0 if model.mask is None else model.mask.mean())",
        end="model.mask = torch.full((2 + epoch,), 0.5 + 0.1*epoch)",
        kept="model.mask",
    ),
    Row(
        "masked_array",
        setup="""\
import numpy
masked = numpy.ma.array([1.0, 2.0], mask=[0, 1])""",
        loss="loss*float(masked.sum())",
        end="masked[0] *= 0.9",
        kept="masked.sum()",
        refused=True,
    ),
    Row(
        "rebind_each_step",
        setup="""\
stage=stages[0]""",
        loss="loss*stage.weight",
        pre="stage = stages[step.index % 3]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "rebind_after_step",
        setup="""\
stage=stages[0]""",
        loss="loss*stage.weight",
        post="stage = stages[step.index % 3]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "rebind_late",
        setup="""\
stage=stages[0]""",
        loss="loss*stage.weight",
        end="stage = stages[min(epoch,2)]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "rebind_late_sum",
        setup="""\
stage=stages[0]""",
        loss="loss*stage.weight + sum(s.weight for s in stages)*model.weight.sum()*0.01",
        end="stage = stages[min(epoch,2)]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "attr_late",
        setup="""\
t=Trainer(); t.stage=stages[0]
def advance(e):
    t.stage = stages[min(e,2)]""",
        loss="loss*t.stage.weight",
        end="advance(epoch)",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "attr_registry",
        setup="""\
class Trainer:
    def __init__(self): self.stage=stages[0]
    def tick(self, e): setattr(self, 'st'+'age', stages[min(e,2)])
t=Trainer(); hooks={'end':[t.tick]}""",
        loss="loss*t.stage.weight",
        end="[h(epoch) for h in hooks['end']]",
        kept="[s.weight for s in stages], t.stage.weight",
    ),
    Row(
        "attr_registry_step",
        setup="""\
class Trainer:
    def __init__(self): self.stage=stages[0]
    def tick(self, e): setattr(self, 'st'+'age', stages[e%3])
t=Trainer(); hooks={'end':[t.tick]}""",
        loss="loss*t.stage.weight",
        post="[h(step.index) for h in hooks['end']]",
        kept="[s.weight for s in stages], t.stage.weight",
    ),
    Row(
        "cfg_replace",
        setup="""\
cfg=Config()
default=cfg""",
        loss="loss*cfg.scale*default.scale",
        end="cfg = dataclasses.replace(cfg, scale=cfg.scale*0.9)",
        kept="cfg, default",
    ),
    Row(
        "cfg_replace_each_step",
        setup="""\
cfg=Config()
default=cfg""",
        loss="loss*cfg.scale*default.scale",
        post="cfg = dataclasses.replace(cfg, scale=cfg.scale*0.9)",
        kept="cfg, default",
    ),
    Row(
        "t_cfg_replace",
        setup="""\
t=Trainer(); t.cfg=Config()
first=t.cfg""",
        loss="loss*t.cfg.scale*first.scale",
        end="t.cfg = dataclasses.replace(t.cfg, scale=t.cfg.scale*0.9)",
        kept="t.cfg, first",
    ),
    Row(
        "t_cfg_replace_cb",
        setup="""\
class Trainer:
    def __init__(self): self.cfg=Config()
    def tick(self): self.cfg=dataclasses.replace(self.cfg, scale=self.cfg.scale*0.9)
t=Trainer()
first=t.cfg
hooks={'e':[t.tick]}""",
        loss="loss*t.cfg.scale*first.scale",
        end="[h() for h in hooks['e']]",
        kept="t.cfg, first",
    ),
    Row(
        "list_alias",
        setup="""\
groups=[[1.0],[2.0],[3.0]]
g=groups[0]""",
        loss="loss*g[0]",
        end="g = groups[epoch%3]",
        kept="groups, g",
    ),
    Row(
        "list_alias_step",
        setup="""\
groups=[[1.0],[2.0],[3.0]]
g=groups[0]""",
        loss="loss*g[0]",
        post="g = groups[step.index%3]",
        kept="groups, g",
    ),
    Row(
        "list_alias_append",
        setup="""\
groups=[[1.0],[2.0],[3.0]]
g=groups[0]""",
        loss="loss*sum(g)",
        post="g = groups[step.index%3]; g.append(0.1)",
        kept="groups, g",
    ),
    Row(
        "dict_alias",
        setup="""\
groups={'a':{'w':1.0},'b':{'w':2.0}}
g=groups['a']""",
        loss="loss*g['w']*groups['a']['w']",
        end="g = groups['b' if epoch%2 else 'a']",
        kept="groups, g",
    ),
    Row(
        "tensor_alias",
        setup="""\
ws=[torch.ones(1),torch.ones(1)*2,torch.ones(1)*3]
w=ws[0]""",
        loss="loss*w.sum()*ws[0].sum()",
        end="w = ws[epoch%3]",
        kept="[x.item() for x in ws], w.item()",
    ),
    Row(
        "tensor_alias_step",
        setup="""\
ws=[torch.ones(1),torch.ones(1)*2,torch.ones(1)*3]
w=ws[0]""",
        loss="loss*w.sum()*ws[0].sum()",
        post="w = ws[step.index%3]",
        kept="[x.item() for x in ws], w.item()",
    ),
    Row(
        "tensor_attr_alias",
        setup="""\
ws=[torch.ones(1),torch.ones(1)*2,torch.ones(1)*3]
class Trainer:
    def __init__(self): self.w=ws[0]
    def tick(self,e): self.w=ws[e%3]
t=Trainer()
hooks={'e':[t.tick]}""",
        loss="loss*t.w.sum()",
        end="[h(epoch) for h in hooks['e']]",
        kept="[x.item() for x in ws], t.w.item()",
    ),
    Row(
        "dict_class",
        setup="""\
class C(dict):
    def __getattr__(self,k): return self[k]
    def __setattr__(self,k,v): self[k]=v
cfg=C(scale=1.0)""",
        loss="loss*cfg.scale",
        end="cfg.scale = cfg.scale*0.9",
        kept="cfg",
    ),
    Row(
        "dict_class_step",
        setup="""\
class C(dict):
    def __getattr__(self,k): return self[k]
    def __setattr__(self,k,v): self[k]=v
cfg=C(scale=1.0)""",
        loss="loss*cfg.scale",
        post="cfg.scale = cfg.scale*0.9",
        kept="cfg",
    ),
    Row(
        "dict_class_new",
        setup="""\
class C(dict):
    def __getattr__(self,k): return self[k]
cfg=C(scale=1.0)
old=cfg""",
        loss="loss*cfg.scale*old.scale",
        end="cfg = C(scale=cfg.scale*0.9)",
        kept="cfg, old",
    ),
    Row(
        "dict_class_attrs",
        setup="""\
class C(dict):
    def __init__(self, **k):
        super().__init__(**k); self.n=0
    def bump(self):
        self.n += 1; self['scale'] *= 0.9
cfg=C(scale=1.0)""",
        loss="loss*cfg['scale']+cfg.n*0",
        end="cfg.bump()",
        kept="cfg, cfg.n",
    ),
    Row(
        "list_class",
        setup="""\
class H(list):
    def mean(self): return sum(self)/max(1,len(self))
h=H()""",
        loss="loss*(1+h.mean())",
        post="h.append(loss*0.1)",
        kept="h",
    ),
    Row(
        "list_class_cb",
        setup="""\
class H(list):
    def mean(self): return sum(self)/max(1,len(self))
h=H()
hooks={'e':[lambda v: h.append(v)]}""",
        loss="loss*(1+h.mean())",
        end="[k(loss*0.1) for k in hooks['e']]",
        kept="h",
    ),
    Row(
        "deque_class",
        setup="""\
from collections import deque
class W(deque):
    def mean(self): return sum(self)/max(1,len(self))
h=W(maxlen=3)
hooks={'e':[lambda v: h.append(v)]}""",
        loss="loss*(1+h.mean())",
        end="[k(loss*0.1) for k in hooks['e']]",
        kept="list(h), h.maxlen",
    ),
    Row(
        "counter_class",
        setup="""\
from collections import Counter
class K(Counter): pass
h=K()""",
        loss="loss*(1+0.01*h['a'])",
        end="h.update(['a'])",
        kept="dict(h)",
    ),
    Row(
        "set_class",
        setup="""\
class S(set): pass
s=S()""",
        loss="loss*(1+len(s))",
        end="s.add(epoch)",
        kept="sorted(s)",
    ),
    Row(
        "state_machine",
        setup="""\
class A:
    k=1.0
    def next(self): return B()
class B:
    k=0.5
    def next(self): return A()
t=Trainer(); t.state=A()""",
        loss="loss*t.state.k",
        end="t.state = t.state.next()",
        kept="type(t.state).__name__",
    ),
    Row(
        "state_var",
        setup="""\
class A:
    k=1.0
    def next(self): return B()
class B:
    k=0.5
    def next(self): return A()
state=A()""",
        loss="loss*state.k",
        end="state = state.next()",
        kept="type(state).__name__",
    ),
    Row(
        "linked",
        setup="""\
class N:
    def __init__(self,v,nxt=None): self.v=v; self.nxt=nxt
c=N(3.0); b=N(2.0,c); cur=N(1.0,b); head=cur""",
        loss="loss*cur.v*head.v",
        end="cur = cur.nxt or head",
        kept="cur.v, head.v, head.nxt.v",
    ),
    Row(
        "swap",
        setup="""\
a=Stage(1.0); b=Stage(0.5)""",
        loss="loss*a.weight",
        end="a, b = b, a",
        kept="a.weight, b.weight",
    ),
    Row(
        "swap_step",
        setup="""\
a=Stage(1.0); b=Stage(0.5)""",
        loss="loss*a.weight",
        post="a, b = b, a",
        kept="a.weight, b.weight",
    ),
    Row(
        "swap_lists",
        setup="""\
a=[1.0]; b=[0.5]; both=[a,b]""",
        loss="loss*a[0]*both[0][0]",
        end="a, b = b, a",
        kept="a, b, both",
    ),
    Row(
        "swap_attr",
        setup="""\
t=Trainer(); t.a=Stage(1.0); t.b=Stage(0.5)
def swap(): t.a, t.b = t.b, t.a
hooks={'e':[swap]}""",
        loss="loss*t.a.weight",
        end="[h() for h in hooks['e']]",
        kept="t.a.weight, t.b.weight",
    ),
    Row(
        "rotate_in_place",
        setup="""\
stages=[Stage(1.0),Stage(0.5),Stage(2.0)]""",
        loss="loss*stages[0].weight",
        end="stages.append(stages.pop(0))",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "rotate_cb",
        setup="""\
hooks={'e':[lambda: stages.append(stages.pop(0))]}""",
        loss="loss*stages[0].weight",
        end="[h() for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "best_obj",
        setup="""\
class Best:
    def __init__(self,l,e): self.l=l; self.e=e
best=None""",
        end="best = Best(loss, epoch) if best is None or loss < best.l else best",
        kept="best.l, best.e",
    ),
    Row(
        "best_in_loss",
        setup="""\
class Best:
    def __init__(self,l,e): self.l=l; self.e=e
best=Best(9.,0)
worst=best""",
        loss="loss*(1+best.l*0.01)*worst.l",
        end="best = Best(loss, epoch) if loss < best.l else best",
        kept="best.l, best.e, worst.l",
    ),
    Row(
        "history_objs",
        setup="""\
class R:
    def __init__(self,l): self.l=l
rs=[]
hooks={'e':[lambda l: rs.append(R(l))]}""",
        loss="loss*(1+sum(r.l for r in rs))",
        end="[h(loss) for h in hooks['e']]",
        kept="[r.l for r in rs]",
    ),
    Row(
        "namespace_swap",
        setup="""\
c=SimpleNamespace(scale=1.0)
d=c""",
        loss="loss*c.scale*d.scale",
        end="c = SimpleNamespace(scale=c.scale*0.9)",
        kept="c, d",
    ),
    Row(
        "mutate_after_rebind",
        setup="""\
stage=stages[0]
hooks={'e':[lambda: setattr(stage,'weight',stage.weight*0.9)]}""",
        loss="loss*stage.weight",
        end="stage = stages[epoch%3]; [h() for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "class_attr_obj",
        setup="""\
class Trainer:
    stage=stages[0]
def adv(e): Trainer.stage=stages[e%3]
hooks={'e':[adv]}""",
        loss="loss*Trainer.stage.weight",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "dict_slot",
        setup="""\
reg={'now':stages[0]}
def adv(e): reg['now']=stages[e%3]
hooks={'e':[adv]}""",
        loss="loss*reg['now'].weight",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "closure_obj",
        setup="""\
def mk():
    cur=stages[0]
    def adv(e):
        nonlocal cur
        cur=stages[e%3]
    def get(): return cur.weight
    return adv,get
adv,get=mk()
hooks={'e':[adv]}""",
        loss="loss*get()",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "deepcopy_obj",
        setup="""\
teacher=Stage(1.0); student=Stage(1.0)""",
        loss="loss*teacher.weight*student.weight",
        end="student.weight*=0.9; teacher=copy.deepcopy(student)",
        kept="teacher.weight, student.weight",
    ),
    Row(
        "buffer_new",
        setup="""\
class Buf:
    def __init__(self): self.items=[]
buf=Buf(); hist=[buf]""",
        loss="loss*(1+len(buf.items))",
        end="buf = Buf(); hist.append(buf); buf.items.append(loss)",
        kept="[b.items for b in hist]",
    ),
    Row(
        "pool_alias_hidden",
        setup="""\
t=Trainer(); t.stage=stages[0]
tick=lambda e: t.__dict__.update(stage=stages[min(e,2)])
hooks={'e':[tick]}""",
        loss="loss*t.stage.weight",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages],t.stage.weight",
    ),
    Row(
        "tuple_of_objs",
        setup="""\
pair=(stages[0], 1.0)""",
        loss="loss*pair[0].weight*pair[1]",
        end="pair = (stages[epoch%3], 0.5)",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "tuple_attr_cb",
        setup="""\
t=Trainer(); t.pair=(stages[0], 1.0)
def adv(e): t.pair=(stages[e%3], 0.5)
hooks={'e':[adv]}""",
        loss="loss*t.pair[0].weight*t.pair[1]",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "named_tuple_cb",
        setup="""\
from collections import namedtuple
R=namedtuple('R','a b')
t=Trainer(); t.r=R(torch.ones(1), 1.0)
def adv(e): t.r=R(t.r.a*0.9, 0.5)
hooks={'e':[adv]}""",
        loss="loss*t.r.a.sum()*t.r.b",
        end="[h(epoch) for h in hooks['e']]",
        kept="t.r.a.item()",
    ),
    Row(
        "cyclic",
        setup="""\
class Node:
    def __init__(self,o): self.o=o; self.v=1.0
t=Trainer(); t.n=Node(t)
def adv(): t.n=Node(t); t.n.v=0.5
hooks={'e':[adv]}""",
        loss="loss*t.n.v*t.n.o.n.v",
        end="[h() for h in hooks['e']]",
        kept="t.n.v, t.n.o is t",
    ),
    Row(
        "cyclic_new",
        setup="""\
class Node:
    def __init__(self,v): self.v=v; self.me=self
n=Node(1.0)""",
        loss="loss*n.me.v",
        end="n = Node(n.v*0.9)",
        kept="n.v, n.me is n",
        refused=True,
    ),
    Row(
        "cyclic_in_place",
        setup="""\
class Node:
    def __init__(self,v): self.v=v; self.me=self
n=Node(1.0)
def adv(): n.v*=0.9
hooks={'e':[adv]}""",
        loss="loss*n.me.v",
        end="[h() for h in hooks['e']]",
        kept="n.v, n.me is n",
    ),
    Row(
        "none_then_obj",
        setup="""\
cur=None
def adv(e):
    global cur
    cur=stages[e%3] if e else None
hooks={'e':[adv]}""",
        loss="loss*(cur.weight if cur is not None else 3.0)",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "obj_then_none",
        setup="""\
cur=stages[1]
def adv(e):
    global cur
    cur=None if e%2 else stages[2]
hooks={'e':[adv]}""",
        loss="loss*(cur.weight if cur is not None else 3.0)",
        end="[h(epoch) for h in hooks['e']]",
        kept="[s.weight for s in stages]",
    ),
    Row(
        "modules_rebound",
        setup="""\
nets=[torch.nn.Linear(4,1) for _ in range(3)]
for q in nets: q.requires_grad_(False)
teacher=nets[0]""",
        loss="loss+0.1*((teacher(batch[0])-model(batch[0]))**2).mean()",
        end="teacher = nets[epoch%3]",
        kept="teacher.weight.sum().item()",
    ),
    Row(
        "modules_rebound_cb",
        setup="""\
nets=[torch.nn.Linear(4,1) for _ in range(3)]
for q in nets: q.requires_grad_(False)
t=Trainer(); t.teacher=nets[0]
hooks={'e':[lambda e: setattr(t,'teacher',nets[e%3])]}""",
        loss="loss+0.1*((t.teacher(batch[0])-model(batch[0]))**2).mean()",
        end="[h(epoch) for h in hooks['e']]",
        kept="t.teacher.weight.sum().item()",
    ),
    Row(
        "teacher_copy_cb",
        setup="""\
t=Trainer(); t.teacher=copy.deepcopy(model).requires_grad_(False)
hooks={'e':[lambda: setattr(t,'teacher',copy.deepcopy(model).requires_grad_(False))]}""",
        loss="loss+0.1*((t.teacher(batch[0])-model(batch[0]))**2).mean()",
        end="[h() for h in hooks['e']]",
        kept="t.teacher.weight.sum().item()",
    ),
    Row(
        "np_rebound",
        setup="""\
import numpy as np
ws=[np.ones(2)*k for k in (1.,2.,3.)]
w=ws[0]
def adv(e):
    global w
    w=ws[e%3]
hooks={'e':[adv]}""",
        loss="loss*float(w.sum())",
        end="[h(epoch) for h in hooks['e']]",
        kept="[x.sum() for x in ws]",
    ),
    Row(
        "sched_list",
        setup="""\
scale=[1.0]
queue=[[0.9],[0.8],[0.7],[0.6],[0.5],[0.4],[0.3]]
def adv():
    global scale
    scale=queue.pop(0)
hooks={'e':[adv]}""",
        loss="loss*scale[0]",
        end="[h() for h in hooks['e']]",
        kept="scale, queue",
    ),
    Row(
        "sched_iter_list",
        setup="""\
phases=[Stage(1.0),Stage(0.5),Stage(2.0),Stage(.1),Stage(.2),Stage(.3),Stage(.4)]
phase=phases.pop()""",
        loss="loss*phase.weight",
        end="phase = phases.pop()",
        kept="[q.weight for q in phases], phase.weight",
    ),
    Row(
        "range_epochs",
        setup="""\
stage=stages[0]""",
        loss="loss*stage.weight",
        end="stage = stages[min(epoch,2)]",
        kept="[s.weight for s in stages]",
        epochs="range(6)",
    ),
    Row(
        "range_pop",
        setup="""\
phases=[Stage(1.0),Stage(0.5),Stage(2.0),Stage(.1),Stage(.2),Stage(.3),Stage(.4)]
phase=phases.pop()""",
        loss="loss*phase.weight",
        end="phase = phases.pop()",
        kept="[q.weight for q in phases], phase.weight",
        epochs="range(6)",
    ),
    Row(
        "range_swap",
        setup="""\
a=Stage(1.0); b=Stage(0.5)""",
        loss="loss*a.weight",
        end="a, b = b, a",
        kept="a.weight, b.weight",
        epochs="range(6)",
    ),
    Row(
        "range_cfg",
        setup="""\
cfg=Config()
default=cfg""",
        loss="loss*cfg.scale*default.scale",
        end="cfg = dataclasses.replace(cfg, scale=cfg.scale*0.9)",
        kept="cfg, default",
        epochs="range(6)",
    ),
    Row(
        "range_cb",
        setup="""\
class Trainer:
    def __init__(self): self.cfg=Config()
    def tick(self): self.cfg=dataclasses.replace(self.cfg, scale=self.cfg.scale*0.9)
t=Trainer()
first=t.cfg
hooks={'e':[t.tick]}""",
        loss="loss*t.cfg.scale*first.scale",
        end="[h() for h in hooks['e']]",
        kept="t.cfg, first",
        epochs="range(6)",
    ),
    Row(
        "range_buffer",
        setup="""\
class Buf:
    def __init__(self): self.items=[]
buf=Buf(); hist=[buf]""",
        loss="loss*(1+len(buf.items))",
        end="buf = Buf(); hist.append(buf); buf.items.append(loss)",
        kept="[b.items for b in hist]",
        epochs="range(6)",
    ),
    Row(
        "frozen_attr",
        setup="""\
@dataclasses.dataclass(frozen=True)
class F:
    s: float
t=Trainer(); t.f=F(1.0); keep=[t.f]
hooks={'e':[lambda: setattr(t,'f',dataclasses.replace(t.f,s=t.f.s*0.9))]}""",
        loss="loss*t.f.s*keep[0].s",
        end="[h() for h in hooks['e']]",
        kept="t.f, keep",
    ),
    Row(
        "slots",
        setup="""\
class S:
    __slots__=('v',)
    def __init__(self,v): self.v=v
ss=[S(1.0),S(.5),S(2.)]; s=ss[0]""",
        loss="loss*s.v",
        end="s = ss[epoch%3]",
        kept="[x.v for x in ss]",
    ),
    Row(
        "slots_new",
        setup="""\
class S:
    __slots__=('v',)
    def __init__(self,v): self.v=v
s=S(1.0)""",
        loss="loss*s.v",
        end="s = S(s.v*0.9)",
        kept="s.v",
    ),
    Row(
        "slots_cb",
        setup="""\
class S:
    __slots__=('v',)
    def __init__(self,v): self.v=v
t=Trainer(); t.s=S(1.0)
hooks={'e':[lambda: setattr(t,'s',S(t.s.v*0.9))]}""",
        loss="loss*t.s.v",
        end="[h() for h in hooks['e']]",
        kept="t.s.v",
    ),
    Row(
        "bound_method_swap",
        setup="""\
class A:
    def f(self,l): return l
    def g(self,l): return l*2
a=A()
a.h=a.f
hooks={'e':[lambda e: setattr(a,'h',a.g if e%2 else a.f)]}""",
        loss="a.h(loss)",
        end="[h(epoch) for h in hooks['e']]",
        refused=True,
    ),
    Row(
        "default_of_partial",
        setup="""\
import functools
def sc(l,s): return l*s
t=Trainer(); t.f=functools.partial(sc,s=1.0)
hooks={'e':[lambda e: setattr(t,'f',functools.partial(sc,s=1.0-e*0.1))]}""",
        loss="t.f(loss)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "class_swap",
        setup="""\
class A:
    k=1.0
class B:
    k=0.5
t=Trainer(); t.kind=A
hooks={'e':[lambda e: setattr(t,'kind',B if e%2 else A)]}""",
        loss="loss*t.kind.k",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "obj_class_swap",
        setup="""\
class A:
    k=1.0
class B(A):
    k=0.5
a=A()
hooks={'e':[lambda e: setattr(a,'__class__',B if e%2 else A)]}""",
        loss="loss*a.k",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "del_attr",
        setup="""\
class A: pass
a=A(); a.x=1.0
hooks={'e':[lambda e: a.__dict__.pop('x',0)]}""",
        loss="loss*getattr(a,'x',0.5)",
        end="[h(epoch) for h in hooks['e']]",
        kept="vars(a)",
        refused=True,
    ),
    Row(
        "del_item",
        setup="""\
d={'x':1.0}
hooks={'e':[lambda e: d.pop('x',0)]}""",
        loss="loss*d.get('x',0.5)",
        end="[h(epoch) for h in hooks['e']]",
        kept="d",
    ),
    Row(
        "getattr_literal",
        setup="""\
class A: pass
a=A(); a.x=1.0
hooks={'e':[lambda e: setattr(a,'x',a.x*0.9)]}""",
        loss="loss*getattr(a,'x')",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "getattr_literal_hidden",
        setup="""\
class A: pass
a=A(); a.x=1.0
hooks={'e':[lambda e: a.__dict__.update({'x': 1/(1+e)})]}""",
        loss="loss*getattr(a,'x',0.5)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "vars_read",
        setup="""\
class A: pass
a=A(); a.x=1.0
hooks={'e':[lambda e: setattr(a,'x',1/(1+e))]}""",
        loss="loss*vars(a)['x']",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "sum_vars_read",
        setup="""\
class A: pass
a=A(); a.x=1.0; a.y=2.0
hooks={'e':[lambda e: setattr(a,'x',1/(1+e))]}""",
        loss="loss*sum(vars(a).values())",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "fmt_read",
        setup="""\
class A: pass
a=A(); a.x=1.0; a.y=2.0
hooks={'e':[lambda e: setattr(a,'x',1/(1+e))]}
name=chr(120)""",
        loss="loss*getattr(a,name)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "asdict_read",
        setup="""\
c=Config()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="loss*dataclasses.asdict(c)['scale']",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "iter_read",
        setup="""\
@dataclasses.dataclass
class C2:
    scale: float=1.0
    def __iter__(self): return iter((self.scale,))
c=C2()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="loss*next(iter(c))",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "attrgetter_read",
        setup="""\
from operator import attrgetter
c=Config()
g=attrgetter('scale')
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="loss*g(c)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "match_read",
        setup="""\
c=Config()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}
def get(c):
    match c:
        case Config(scale=s): return s""",
        loss="loss*get(c)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "star_args",
        setup="""\
d={'scale':1.0}
def f(l, scale): return l*scale
hooks={'e':[lambda e: d.update(scale=1/(1+e))]}""",
        loss="f(loss, **d)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "star_vars",
        setup="""\
c=SimpleNamespace(scale=1.0)
def f(l, scale): return l*scale
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="f(loss, **vars(c))",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "eq_read",
        setup="""\
c=Config(); d=Config()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="loss*(1.0 if c==d else 0.5)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "repr_read",
        setup="""\
c=Config()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}""",
        loss="loss*len(repr(c))",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "copy_read",
        setup="""\
c=Config()
hooks={'e':[lambda e: setattr(c,'scale',1/(1+e))]}
def f():
    d=copy.copy(c); return d.scale""",
        loss="loss*f()",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "lambda_lr",
        setup="""\
state={'k':1.0}
sched=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: state['k'])""",
        post="sched.step()",
        end="state['k']*=0.9",
    ),
    Row(
        "own_lr_var",
        setup="""\
lr=0.05""",
        end="lr *= 0.9; optimizer.param_groups[0]['lr']=lr",
        kept="lr",
    ),
    Row(
        "group_alias",
        setup="""\
group=optimizer.param_groups[0]
hooks={'e':[lambda: group.update(lr=group['lr']*0.9)]}""",
        end="[h() for h in hooks['e']]",
        kept="group['lr']",
    ),
    Row(
        "sched_cb",
        setup="""\
sched=torch.optim.lr_scheduler.StepLR(optimizer,1,0.9)
hooks={'e':[sched.step]}""",
        end="[h() for h in hooks['e']]",
        kept="optimizer.param_groups[0]['lr']",
    ),
    Row(
        "sched_attr_cb",
        setup="""\
class Trainer:
    def __init__(self): self.sched=torch.optim.lr_scheduler.StepLR(optimizer,1,0.9)
    def tick(self): self.sched.step()
t=Trainer()
hooks={'e':[t.tick]}""",
        end="[h() for h in hooks['e']]",
        kept="optimizer.param_groups[0]['lr']",
    ),
    Row(
        "ema_cb",
        setup="""\
ema=copy.deepcopy(model).requires_grad_(False)
def upd():
    for a,b in zip(ema.parameters(), model.parameters()): a.lerp_(b,0.5)
hooks={'e':[torch.no_grad()(upd)]}""",
        loss="loss+0.1*((ema(batch[0])-model(batch[0]))**2).mean()",
        end="[h() for h in hooks['e']]",
        kept="ema.weight.sum().item()",
    ),
    Row(
        "ema_step_cb",
        setup="""\
ema=copy.deepcopy(model).requires_grad_(False)
def upd():
    for a,b in zip(ema.parameters(), model.parameters()): a.lerp_(b,0.5)
hooks={'e':[torch.no_grad()(upd)]}""",
        loss="loss+0.1*((ema(batch[0])-model(batch[0]))**2).mean()",
        post="[h() for h in hooks['e']]",
        kept="ema.weight.sum().item()",
    ),
    Row(
        "bank_dict",
        setup="""\
bank={}
def upd(e,l): bank[e]=l
hooks={'e':[upd]}""",
        loss="loss*(1+len(bank))",
        end="[h(epoch,loss) for h in hooks['e']]",
        kept="bank",
    ),
    Row(
        "bank_deque",
        setup="""\
from collections import deque
bank=deque(maxlen=2)
hooks={'e':[bank.append]}""",
        loss="loss*(1+sum(bank))",
        end="[h(loss) for h in hooks['e']]",
        kept="bank",
    ),
    Row(
        "bank_tensor_list",
        setup="""\
bank=[]
hooks={'e':[lambda: bank.append(model.weight.detach().clone())]}""",
        loss="loss*(1+sum(b.sum() for b in bank).abs() if bank else 1.0)",
        end="[h() for h in hooks['e']]",
        kept="len(bank)",
    ),
    Row(
        "set_cb",
        setup="""\
seen=set()
hooks={'e':[seen.add]}""",
        loss="loss*(1+len(seen))",
        end="[h(epoch) for h in hooks['e']]",
        kept="seen",
    ),
    Row(
        "np_rng_cb",
        setup="""\
import numpy as np
rng=np.random.default_rng(0)
t=Trainer(); t.s=1.0
hooks={'e':[lambda: setattr(t,'s',float(rng.random()))]}""",
        loss="loss*t.s",
        end="[h() for h in hooks['e']]",
        kept="t.s",
    ),
    Row(
        "rng_attr_cb",
        setup="""\
import random
class Trainer:
    def __init__(self): self.r=random.Random(0); self.s=1.0
    def tick(self): self.s=self.r.random()
t=Trainer()
hooks={'e':[t.tick]}""",
        loss="loss*t.s",
        end="[h() for h in hooks['e']]",
        kept="t.s",
    ),
    Row(
        "global_random_cb",
        setup="""\
import random
t=Trainer(); t.s=1.0
hooks={'e':[lambda: setattr(t,'s',random.random())]}""",
        loss="loss*t.s",
        end="[h() for h in hooks['e']]",
        kept="t.s",
    ),
    Row(
        "gen_coroutine_cb",
        setup="""\
def gen():
    k=1.0
    while True:
        k*=0.9
        yield k
g=gen()
t=Trainer(); t.s=1.0
hooks={'e':[lambda: setattr(t,'s',next(g))]}""",
        loss="loss*t.s",
        end="[h() for h in hooks['e']]",
        kept="t.s",
        refused=True,
    ),
    Row(
        "itertools_cb",
        setup="""\
import itertools
c=itertools.count(1)
t=Trainer(); t.s=1.0
hooks={'e':[lambda: setattr(t,'s',1/next(c))]}""",
        loss="loss*t.s",
        end="[h() for h in hooks['e']]",
        kept="t.s",
        refused=True,
    ),
    Row(
        "heap_cb",
        setup="""\
import heapq
h=[3.0,1.0,2.0]
t=Trainer(); t.s=1.0
hooks={'e':[lambda: setattr(t,'s',heapq.heappushpop(h,4.0))]}""",
        loss="loss*t.s",
        end="[k() for k in hooks['e']]",
        kept="t.s,h",
    ),
    Row(
        "module_global_cb",
        setup="""\
import types,sys
m=types.ModuleType('mymod'); m.k=1.0
hooks={'e':[lambda: setattr(m,'k',m.k*0.9)]}""",
        loss="loss*m.k",
        end="[h() for h in hooks['e']]",
        kept="m.k",
    ),
    Row(
        "hook_handle_cb",
        setup="""\
fs=[]
def reg():
    fs.append(model.register_forward_hook(lambda m,i,o: o*0.9))
hooks={'e':[reg]}""",
        end="[h() for h in hooks['e']]",
        kept="len(fs)",
        refused=True,
    ),
    Row(
        "freeze_cb",
        setup="""\
def fr(e): model.bias.requires_grad_(e%2==0)
hooks={'e':[fr]}""",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "train_flag_cb",
        setup="""\
hooks={'e':[lambda e: model.train(e%2==0)]}""",
        loss="loss*(1.0 if model.training else 0.5)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "dropout_p_cb",
        setup="""\
drop=torch.nn.Dropout(0.1)
hooks={'e':[lambda e: setattr(drop,'p',0.1*e)]}""",
        loss="drop(loss)",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "crit_replaced_cb",
        setup="""\
t=Trainer(); t.crit=torch.nn.MSELoss()
hooks={'e':[lambda e: setattr(t,'crit',torch.nn.L1Loss() if e%2 else torch.nn.MSELoss())]}""",
        loss="t.crit(model(batch[0]), batch[1])",
        end="[h(epoch) for h in hooks['e']]",
        refused=True,
    ),
    Row(
        "crit_table_cb",
        setup="""\
t=Trainer(); crits=[torch.nn.MSELoss(),torch.nn.L1Loss()]; t.crit=crits[0]
hooks={'e':[lambda e: setattr(t,'crit',crits[e%2])]}""",
        loss="t.crit(model(batch[0]), batch[1])",
        end="[h(epoch) for h in hooks['e']]",
    ),
    Row(
        "crit_rebound",
        setup="""\
crit=torch.nn.MSELoss()""",
        loss="crit(model(batch[0]), batch[1])",
        end="crit = torch.nn.L1Loss() if epoch%2 else torch.nn.MSELoss()",
        refused=True,
    ),
    Row(
        "fn_table_cb",
        setup="""\
import torch.nn.functional as F
t=Trainer(); t.f=F.mse_loss
hooks={'e':[lambda e: setattr(t,'f',F.l1_loss if e%2 else F.mse_loss)]}""",
        loss="t.f(model(batch[0]), batch[1])",
        end="[h(epoch) for h in hooks['e']]",
        refused=True,
    ),
    Row(
        "lambda_attr_cb",
        setup="""\
t=Trainer(); t.f=lambda l: l
hooks={'e':[lambda e: setattr(t,'f',(lambda l: l*0.5) if e%2 else (lambda l: l*2))]}""",
        loss="t.f(loss)",
        end="[h(epoch) for h in hooks['e']]",
        refused=True,
    ),
    Row(
        "lambda_closure_cb",
        setup="""\
t=Trainer(); t.f=lambda l: l
def mk(k): return lambda l: l*k
hooks={'e':[lambda e: setattr(t,'f',mk(1/(1+e)))]}""",
        loss="t.f(loss)",
        end="[h(epoch) for h in hooks['e']]",
        refused=True,
    ),
    Row(
        "nested_dc",
        setup="""\
@dataclasses.dataclass
class Outer:
    inner: Config
    n: int=0
o=Outer(Config())
keep=o.inner""",
        loss="loss*o.inner.scale*keep.scale",
        end="o = dataclasses.replace(o, inner=dataclasses.replace(o.inner, scale=o.inner.scale*0.9))",
        kept="o, keep",
    ),
    Row(
        "nested_dc_share",
        setup="""\
@dataclasses.dataclass
class Outer:
    inner: Config
    n: int=0
o=Outer(Config())
keep=o.inner""",
        loss="loss*o.inner.scale*keep.scale",
        end="o = dataclasses.replace(o, n=epoch); keep.scale*=0.9",
        kept="o, keep, o.inner is keep",
    ),
    Row(
        "omega",
        setup="""\
from collections import OrderedDict, defaultdict
d=defaultdict(list)
hooks={'e':[lambda l: d['x'].append(l)]}""",
        loss="loss*(1+sum(d['x']) if 'x' in d else 1.0)",
        end="[h(loss) for h in hooks['e']]",
        kept="dict(d)",
    ),
    Row(
        "window_slice",
        setup="""\
w=[1.0]""",
        loss="loss*sum(w)/len(w)",
        end="w = (w + [loss])[-3:]",
        kept="w",
    ),
    Row(
        "window_alias",
        setup="""\
w=[1.0]; first=w""",
        loss="loss*sum(w)/len(w)*sum(first)",
        end="w = (w + [loss])[-3:]",
        kept="w, first",
    ),
    Row(
        "dict_merge",
        setup="""\
w={'a':1.0}; first=w""",
        loss="loss*sum(w.values())*sum(first.values())",
        end="w = {**w, str(epoch): 0.1}",
        kept="w, first",
    ),
    Row(
        "tensor_new_alias",
        setup="""\
w=torch.ones(1); first=w""",
        loss="loss*w.sum()*first.sum()",
        end="w = w*0.9",
        kept="w.item(), first.item()",
    ),
    Row(
        "tensor_in_obj_new",
        setup="""\
t=Trainer(); t.w=torch.ones(1); first=t.w
hooks={'e':[lambda: setattr(t,'w',t.w*0.9)]}""",
        loss="loss*t.w.sum()*first.sum()",
        end="[h() for h in hooks['e']]",
        kept="t.w.item(), first.item()",
    ),
    Row(
        "best_live",
        setup="""\
best=None""",
        end="""if epoch==1: best=model.state_dict()
        if epoch==3: model.load_state_dict(best)""",
    ),
    Row(
        "best_copy",
        setup="""\
best=None""",
        end="""if epoch==1: best=copy.deepcopy(model.state_dict())
        if epoch==3: model.load_state_dict(best)""",
    ),
    Row(
        "best_clone",
        setup="""\
best=None""",
        end="""if epoch==1: best={k:v.clone() for k,v in model.state_dict().items()}
        if epoch==3: model.load_state_dict(best)""",
    ),
    Row(
        "best_shallow",
        setup="""\
best=None""",
        end="""if epoch==1: best=copy.copy(model.state_dict())
        if epoch==3: model.load_state_dict(best)""",
    ),
    Row(
        "w_view",
        setup="""\
w=None""",
        loss="loss*(1.0 if w is None else w.sum().abs())",
        end="\n        if epoch==1: w=model.weight.detach()",
    ),
    Row(
        "w_data_view",
        setup="""\
w=None""",
        loss="loss*(1.0 if w is None else w.sum().abs())",
        end="\n        if epoch==1: w=model.weight.data[0]",
    ),
    Row(
        "w_view_before",
        setup="""\
w=model.weight.detach()""",
        loss="loss*(1.0 if w is None else w.sum().abs())",
    ),
    Row(
        "flat_params",
        setup="""\
ws=[q.detach() for q in model.parameters()]""",
        loss="loss*sum(w.sum() for w in ws).abs()",
        end="ws = [q.detach() for q in model.parameters()]",
    ),
    Row(
        "mom_view",
        setup="""\
m=None""",
        loss="loss*(1.0 if m is None else 1+m.sum().abs())",
        end="\n        if epoch==1: m=optimizer.state[model.weight]['momentum_buffer']",
    ),
    Row(
        "np_shared",
        setup="""\
import numpy as np
a=np.ones(3); t=torch.from_numpy(a)""",
        loss="loss*t.sum()",
        end="a *= 0.9",
        kept="t.sum().item(), a.sum()",
    ),
    Row(
        "np_shared_cb",
        setup="""\
import numpy as np
a=np.ones(3); t=torch.from_numpy(a)
def f():
    a[:]=a*0.9
hooks={'e':[f]}""",
        loss="loss*t.sum()",
        end="[h() for h in hooks['e']]",
        kept="t.sum().item(), a.sum()",
    ),
    Row(
        "view_pair",
        setup="""\
base=torch.ones(4); v=base[:2]""",
        loss="loss*v.sum()*base.sum()",
        end="v *= 0.9",
        kept="base.sum().item(), v.sum().item()",
    ),
    Row(
        "view_pair_cb",
        setup="""\
base=torch.ones(4); v=base[:2]
def f():
    v.mul_(0.9)
hooks={'e':[f]}""",
        loss="loss*v.sum()*base.sum()",
        end="[h() for h in hooks['e']]",
        kept="base.sum().item(), v.sum().item()",
    ),
    Row(
        "view_new",
        setup="""\
base=torch.ones(4); v=base[:2]""",
        loss="loss*v.sum()*base.sum()",
        end="base = base*0.9; v = base[:2]; v *= 0.99",
        kept="base.sum().item(), v.sum().item()",
    ),
    Row(
        "tied_list",
        setup="""\
w=torch.ones(1); box=[w, w]""",
        loss="loss*box[0].sum()*box[1].sum()",
        end="w *= 0.9",
        kept="[b.item() for b in box]",
    ),
    Row(
        "shared_new_lists",
        setup="""\
a=[1.0]; b=a""",
        loss="loss*a[0]*b[0]",
        end="\n        if epoch==0: a=[0.9]; b=a\n        a[0]*=0.9",
        kept="a,b,a is b",
    ),
    Row(
        "shared_new_dict_in_obj",
        setup="""\
t=Trainer(); t.a={'k':1.0}; t.b=t.a
def f():
    if 'x' not in t.a:
        t.a={'k':0.9,'x':1}; t.b=t.a
    t.a['k']*=0.9
hooks={'e':[f]}""",
        loss="loss*t.a['k']*t.b['k']",
        end="[h() for h in hooks['e']]",
        kept="t.a,t.b,t.a is t.b",
    ),
    Row(
        "shared_new_tensor",
        setup="""\
a=torch.ones(1); b=a""",
        loss="loss*a.sum()*b.sum()",
        end="\n        if epoch==0: a=torch.ones(1)*0.9; b=a\n        a *= 0.9",
        kept="a.item(),b.item()",
    ),
    Row(
        "state_of_the_optimizer_live",
        setup="saved = None",
        end="""if epoch==1: saved=optimizer.state_dict()
        if epoch==3: optimizer.load_state_dict(saved)""",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_newcomer_has_the_same_objects_or_is_told_that_it_has_not(row: Row, tmp_path: Path) -> None:
    path = tmp_path / "cell.py"
    path.write_text(
        CELL.format(**{name: getattr(row, name) for name in ("setup", "loss", "pre", "post", "end", "kept", "epochs")})
    )
    for joins_after in JOINS:
        found = rehearse(path, joins_after)
        if row.refused:
            assert found.exact or "does not have" in found.sentence or "cannot be given" in found.sentence, found
        else:
            assert found.exact and not found.sentence, (joins_after, found)
