from recsys.training.optim import lr_at
from recsys.training.passes import TrainingConfig


def test_a_refit_takes_the_chosen_passes_along_the_schedule_of_before():
    training = TrainingConfig(batch_size=10, max_epochs=10.0, warmup_share=0.1)
    before = training.for_examples(100)
    again = training.for_refit(50, (100, 150))
    # Half of 100 steps were best; half as many examples more make each pass half as long again.
    assert (before.num_steps, again.num_steps) == (100, 75)
    assert (again.schedule.decay_steps, again.schedule.warmup_steps) == (150, 15)
    rates = [lr_at(step, again.schedule, again.num_steps) for step in (15, 30, 60)]
    same = [lr_at(step, before.schedule, before.num_steps) for step in (10, 20, 40)]
    assert rates == same
    shorter = training.for_refit(50, (100, 150), share=0.4)
    assert (shorter.num_steps, shorter.schedule.decay_steps) == (30, 60)


def test_a_continued_refit_takes_its_own_passes_at_a_lower_rate():
    training = TrainingConfig(batch_size=10, max_epochs=10.0, refit_epochs=2.0, refit_rate=0.25)
    config = training.for_continued_refit(150)
    assert config.num_steps == 30
    assert config.schedule.learning_rate == 0.25 * training.schedule.learning_rate
    assert config.schedule.warmup_steps == 3
