"""A person's recipe as options of our groups: ``batch=recipe``, ``kl=recipe``, ... for Hydra to compose points from.

So every other option still replaces a whole group, and every key a single number, whatever the recipe says.
"""

from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from grposweep.config.own import NUMBERS, own_values
from grposweep.config.schema import Trainer
from grposweep.programs import is_program
from grposweep.programs.recipe import base_of

OPTION = "recipe"  # the name of the options, and of the group that chooses them all


def offer_recipe(composed: DictConfig) -> list[str]:
    """Offer the recipe that a composition names as options; the overrides that choose them where nothing else is chosen.

    None for trainers of our own.
    """
    if not is_program(str(composed.trainer.kind)):
        return []
    trainer = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Trainer), composed.trainer))
    assert isinstance(trainer, Trainer)  # structured() keeps the type
    values = own_values(base_of(trainer, int(composed.cluster.processes)))
    store = ConfigStore.instance()
    for group in NUMBERS:
        store.store(group=group, name=OPTION, node=values.pop(group), provider="grposweep")
    chosen: dict[str, Any] = {"defaults": [*({f"override /{group}": OPTION} for group in NUMBERS), "_self_"], **values}
    store.store(group=OPTION, name=OPTION, node=chosen, package="_global_", provider="grposweep")
    return [f"{OPTION}={OPTION}"]
