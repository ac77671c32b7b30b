"""A training with fastai's Learner: python fastai_learner.py FOLDER MODE."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.data.block import DataBlock, RegressionBlock
from fastai.data.core import DataLoaders
from fastai.data.transforms import FuncSplitter, get_image_files
from fastai.learner import Learner
from fastai.optimizer import SGD
from fastai.vision.augment import Resize
from fastai.vision.data import ImageBlock

from tests.frameworks.training import BATCH, EPOCHS, SIZE, Model, numbered, took

FOLDER, MODE = sys.argv[1:3]


class Took(Callback):
    def after_batch(self) -> None:
        took(self.yb[0], self.loss, kind="train" if self.training else "validation")


random.seed(3)
torch.manual_seed(3)
if MODE == "torch":
    data, valid = numbered(FOLDER), numbered(FOLDER)
    train_loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    dls: Any = DataLoaders(train_loader, torch.utils.data.DataLoader(valid, BATCH))
else:
    blocks = DataBlock(
        blocks=(ImageBlock, RegressionBlock),
        get_items=get_image_files,
        get_y=lambda path: float(Path(path).stem),
        splitter=FuncSplitter(lambda path: int(Path(path).stem) % 4 == 0),
        item_tfms=Resize(SIZE),
    )
    dls = blocks.dataloaders(FOLDER, bs=BATCH, num_workers=2 if MODE == "workers" else 0, device="cpu")
    dls.one_batch()
learner = Learner(dls, Model(), loss_func=lambda out, _: ((out - 1) ** 2).mean(), opt_func=SGD, cbs=[Took()])
learner.remove_cb(ProgressCallback)
learner.logger = lambda _: None
learner.fit(EPOCHS, 1e-2)
