from __future__ import annotations

import os
import signal
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpnn.data import Dataset, StepSampler
from mpnn.training import Settings, fit, seeded


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, 1, generator=generator)
    y = (x.sum((1, 2)) > 0).long() + (x[:, 0, 0] > 0.5).long()
    return Dataset("toy", x[:45], y[:45], x[45:], y[45:], (6,), 3)


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def by_hand(data, settings, steps, seed):
    """The same run as a plain torch loop."""
    net = model()
    optimiser = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda t: min((t + 1) / (0.2 * steps), 0.5 * (1 + torch.cos(torch.tensor(torch.pi * t / steps)).item())),
    )
    losses = []
    for index in StepSampler(45, batch_size=10, steps=steps, seed=seed):
        loss = F.cross_entropy(net(data.x_train[index]), data.y_train[index], label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimiser.step()
        scheduler.step()
        losses.append(loss.item())
    net.eval()
    accuracy = (net(data.x_test).argmax(-1) == data.y_test).float().mean().item()
    return net, losses, accuracy


SETTINGS = Settings(
    1e-2,
    optimiser="adamw",
    weight_decay=0.1,
    schedule="cosine",
    warmup=0.2,
    batch_size=10,
    clip=0.5,
    label_smoothing=0.1,
)


def test_a_run_equals_a_plain_torch_loop(data):
    with seeded(3):
        net, losses, accuracy = by_hand(data, SETTINGS, 20, 3)
    with seeded(3):
        ours = model()
        run = fit(ours, data, SETTINGS, steps=20, seed=3, evaluations=20)
    torch.testing.assert_close(dict(ours.state_dict()), dict(net.state_dict()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run.curve.train_loss, losses, rtol=1e-5, atol=1e-6)
    assert run.accuracy == pytest.approx(accuracy)


def test_a_seed_repeats_to_the_last_bit_and_another_differs(data):
    runs = []
    for seed in (1, 1, 2):
        with seeded(seed):
            net = model()
            run = fit(net, data, SETTINGS, steps=12, seed=seed)
        runs.append((run.curve, net.state_dict()))
    assert runs[0][0] == runs[1][0] and all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])
    assert runs[0][0] != runs[2][0]


@pytest.mark.parametrize(("steps", "evaluations"), [(1, 1), (1, 15), (20, 4), (20, 3), (7, 5), (23, 15)])
def test_the_last_evaluation_is_after_the_last_step(steps, evaluations, data):
    calls = []
    run = fit(model(), data, SETTINGS, steps=steps, evaluations=evaluations, advance=lambda step, _: calls.append(step))
    curve = run.curve
    assert curve.steps[-1] == steps and curve.steps == sorted(set(curve.steps))
    assert len(curve.steps) <= evaluations
    assert len(curve.train_loss) == len(curve.test_loss) == len(curve.test_accuracy) == len(curve.steps)
    assert calls == list(range(1, steps + 1))
    assert 0 < run.seconds_a_step < run.seconds


def test_nothing_is_printed_warned_or_left_behind(data, capfd):
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with seeded(0):
            fit(model(), data, SETTINGS, steps=4)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.rand(2), expected)


def test_the_model_is_trained_in_training_mode_and_seen_in_evaluation(data):
    modes = []

    class Watch(nn.Linear):
        def forward(self, x):
            modes.append((self.training, torch.is_grad_enabled(), x.is_inference()))
            return super().forward(x)

    fit(nn.Sequential(nn.Flatten(), Watch(6, 3)), data, SETTINGS, steps=2, evaluations=2)
    assert modes == [(True, True, False), (False, False, False)] * 2


def test_ctrl_c_arrives_as_itself(data):
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)

    def stop(step, _):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(model(), data, SETTINGS, steps=1000, advance=stop)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fault_of_the_model_is_not_hidden(data):
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), data, SETTINGS, steps=2)


@pytest.mark.parametrize("name", ["steps", "evaluations"])
def test_numbers_below_one_are_named(name, data):
    with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
        fit(model(), data, SETTINGS, **({"steps": 2} | {name: 0}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": "adamax"}, r"optimiser: expected one of adam, adamw, sgd, got 'adamax'"),
        ({"schedule": "linear"}, r"schedule: expected one of constant, cosine"),
        ({"learning_rate": -1}, r"learning_rate: expected"),
        ({"warmup": 1.5}, r"warmup: expected a number from 0 to 1, got 1.5"),
        ({"batch_size": 0}, r"batch_size: expected"),
        ({"weight_decay": float("nan")}, r"weight_decay: expected"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**({"learning_rate": 1e-3} | change))


def test_rates_rise_and_fall():
    settings = Settings(1.0, schedule="cosine", warmup=0.1)
    rates = [settings.rate(step, steps=100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(9)] + [rates[9]])
    assert max(rates) < 1 and rates[100] == 0 and rates[10:] == sorted(rates[10:], reverse=True)
    assert all(Settings(1.0).rate(step, steps=7) == 1 for step in range(8))
