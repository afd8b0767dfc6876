"""Drawn faces: attributes from an index, a picture from attributes, and attributes back from a caption.

Everything is a function of its arguments: picture 17 is the same on every machine, in every order, and
nothing touches Python's global random state. The parts are python-avatars', the rasterizer is resvg.
"""

from __future__ import annotations

import functools
import io
import random
from dataclasses import asdict, dataclass, replace

import numpy as np
from PIL import Image

from shift_diffusion.data import avatar_words as words

VERSION = 1
"""Raised when the same index or attributes give another picture: content hashes and caches follow it."""


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """All that shows in a drawn face; every value is a key of a table in `avatar_words`.

    `hair_color` is "" where no hair shows, `hat_color` is "" without a hat.
    """

    top: str  # hair style or hat
    hair_color: str
    hat_color: str
    facial_hair: str
    skin: str
    eyes: str
    expression: str
    accessory: str
    clothing: str
    clothing_color: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @property
    def person(self) -> str:
        """woman, man or person: follows from hair style and facial hair."""
        return "man" if self.facial_hair != "none" else _top(self.top).person


def _top(name: str) -> words.Top:
    return words.HAIR[name] if name in words.HAIR else words.HATS[name]


def draw(index: int) -> Attributes:
    """The attributes of picture `index` (>= 0), from a generator of its own."""
    rng = random.Random(f"shift-diffusion avatar {index}")
    top = rng.choice(list(words.HATS)) if rng.random() < 0.12 else rng.choice(list(words.HAIR))
    can_have_beard = _top(top).person == "man" or top in words.BEARDABLE
    facial_hair = _favor(rng, words.FACIAL_HAIR, "none", 0.5) if can_have_beard else "none"
    accessory = rng.choices(list(words.ACCESSORIES), weights=[10, 3, 3, 3, 1.5, 0.5])[0]
    return _canonical(
        Attributes(
            top=top,
            hair_color=rng.choice(list(words.HAIR_COLORS)),
            hat_color=rng.choice(list(words.FABRIC_COLORS)),
            facial_hair=facial_hair,
            skin=rng.choice(list(words.SKINS)),
            eyes=_favor(rng, words.EYES, "open", 0.55),
            expression=_favor(rng, words.EXPRESSIONS, "smiling", 0.25),
            accessory=accessory,
            clothing=rng.choice(list(words.CLOTHES)),
            clothing_color=rng.choice(list(words.FABRIC_COLORS)),
        )
    )


def _favor(rng: random.Random, choices: dict, favorite: str, share: float) -> str:
    """`favorite` with probability `share`, else one of the others, all alike."""
    others = [name for name in choices if name != favorite]
    return favorite if rng.random() < share else rng.choice(others)


def _canonical(attributes: Attributes) -> Attributes:
    """Blanks what does not show, so that equal pictures have equal attributes."""
    hat = attributes.top in words.HATS
    hair_shows = attributes.facial_hair != "none" or not (hat or attributes.top == "bald")
    return replace(
        attributes,
        hair_color=attributes.hair_color if hair_shows else "",
        hat_color=attributes.hat_color if hat else "",
        eyes="open" if attributes.accessory in words.DARK_GLASSES else attributes.eyes,
    )


def phrases(attributes: Attributes) -> dict[str, str]:
    """The words for each attribute that is worth saying, in the order of a full caption."""
    a, top = attributes, _top(attributes.top)
    bare = a.top in words.HATS or a.top == "bald"
    beard = words.FACIAL_HAIR[a.facial_hair][1].format(a.hair_color if bare else "").replace("  ", " ")
    found = {
        "top": top.phrase.format(a.hat_color if a.top in words.HATS else a.hair_color),
        "facial_hair": beard,
        "skin": f"{a.skin} skin",
        "eyes": words.EYES[a.eyes][1],
        "accessory": words.ACCESSORIES[a.accessory][1],
        "clothing": _article(words.CLOTHES[a.clothing][1].format(a.clothing_color)),
        "expression": words.EXPRESSIONS[a.expression][2],
    }
    return {name: _article(phrase) for name, phrase in found.items() if phrase}


def _article(phrase: str) -> str:
    """'a orange hoodie' -> 'an orange hoodie'."""
    return " ".join(
        "an" if word == "a" and following[:1] in "aeiou" else word
        for word, following in zip(phrase.split(" "), [*phrase.split(" ")[1:], "-"], strict=True)
    )


def caption(attributes: Attributes, wording: int = 0) -> str:
    """A full caption: says everything that shows. `wording` 0, 1 or 2 changes the order, not the content."""
    return _sentence(attributes, phrases(attributes), wording)


def caption_of(index: int) -> tuple[str, str]:
    """(the caption to train with, the full caption) of picture `index`.

    Half of the training captions are shortened to a few attributes, as people write prompts; some of
    those name only the color of the hair.
    """
    rng = random.Random(f"shift-diffusion caption {index}")
    attributes = draw(index)
    wording = rng.randrange(3)
    full = caption(attributes, wording)
    if rng.random() < 0.5:
        return full, full
    said = phrases(attributes)
    chosen = rng.sample(sorted(said), k=min(rng.randint(1, 4), len(said)))
    if "top" in said and "top" not in chosen and rng.random() < 0.5:
        chosen.append("top")
    short = {name: phrase for name, phrase in said.items() if name in chosen}
    if "top" in short and attributes.top in words.HAIR and rng.random() < 0.4:
        short["top"] = f"{attributes.hair_color} hair"
    return _sentence(attributes, short, wording), full


def _sentence(attributes: Attributes, said: dict[str, str], wording: int) -> str:
    said = dict(said)
    subject = f"a bald {attributes.person}" if attributes.top == "bald" else f"a {attributes.person}"
    expression, clothing = said.pop("expression", ""), said.pop("clothing", "")
    if wording == 1 and clothing:
        subject, clothing = f"{subject} wearing {clothing}", ""
    features = list(said.values())
    if wording == 2 and clothing:
        features, clothing = [*features, clothing], ""
    parts = [
        f"{subject}{',' if ' wearing ' in subject and features else ''}"
        + (f" with {_listed(features)}" if features else ""),
        f"wearing {clothing}" if clothing else "",
        expression,
    ]
    return ", ".join(part for part in parts if part)


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


@functools.cache
def _dictionary() -> list[tuple[str, dict[str, str]]]:
    """Every phrase a caption can hold with what it says, longest first."""
    entries = [
        ({"top": name, "hair_color": c}, t.phrase.format(c))
        for name, t in words.HAIR.items()
        for c in words.HAIR_COLORS
    ]
    entries += [({"hair_color": c}, f"{c} hair") for c in words.HAIR_COLORS]
    entries += [
        ({"top": name, "hat_color": c}, t.phrase.format(c))
        for name, t in words.HATS.items()
        for c in words.FABRIC_COLORS
    ]
    entries += [({"facial_hair": n}, p.replace("{} ", "")) for n, (_, p) in words.FACIAL_HAIR.items()]
    entries += [
        ({"facial_hair": n, "hair_color": c}, p.format(c))
        for n, (_, p) in words.FACIAL_HAIR.items()
        for c in words.HAIR_COLORS
    ]
    entries += [({"skin": skin}, f"{skin} skin") for skin in words.SKINS]
    entries += [({"eyes": n}, p) for n, (_, p) in words.EYES.items()]
    entries += [({"accessory": n}, p) for n, (_, p) in words.ACCESSORIES.items()]
    entries += [
        ({"clothing": n, "clothing_color": c}, p.format(c))
        for n, (_, p) in words.CLOTHES.items()
        for c in words.FABRIC_COLORS
    ]
    entries += [({"expression": n}, p) for n, (_, _, p) in words.EXPRESSIONS.items()]
    entries += [({"top": "bald"}, f"bald {person}") for person in ("man", "woman", "person")]
    return sorted(((_article(p), said) for said, p in entries if p), key=lambda entry: -len(entry[0]))


def attributes_of(text: str) -> Attributes:
    """Reads a caption back. Exact for every full caption; what a shorter one leaves out becomes a plain default.

    The defaults: short brown hair on a man, long brown hair on anyone else, light skin, open eyes, a smile,
    no glasses, a gray t-shirt.
    """
    remaining = f" {' '.join(text.lower().replace(',', ' , ').split())} "
    said: dict[str, str] = {}
    for phrase, meaning in _dictionary():
        marked = f" {phrase} "
        if marked in remaining:
            said = {**meaning, **said}
            remaining = remaining.replace(marked, " | ")
    man = " man " in remaining or "facial_hair" in said or said.get("top") == "bald"
    defaults = Attributes(
        top="short" if man else "long",
        hair_color="brown",
        hat_color="gray",
        facial_hair="none",
        skin="light",
        eyes="open",
        expression="smiling",
        accessory="none",
        clothing="t-shirt",
        clothing_color="gray",
    )
    return _canonical(replace(defaults, **said))


def render(face: Attributes | str, size: int) -> np.ndarray:
    """Draws a face (or what a caption says) on white.

    Args:
        face: attributes or a caption.
        size: side in pixels.

    Returns:
        (size, size, 3) uint8, drawn at twice the side and averaged over 2x2 pixels.
    """
    large = Image.fromarray(render_master(face, 2 * size))
    return np.asarray(large.reduce(2))


def render_master(face: Attributes | str, size: int) -> np.ndarray:
    """(size, size, 3) uint8, as the rasterizer draws it, centered, without supersampling."""
    import resvg_py

    attributes = attributes_of(face) if isinstance(face, str) else face
    png = resvg_py.svg_to_bytes(
        svg_string=_svg(attributes), width=size, height=size, background="#ffffff", skip_system_fonts=True
    )
    drawn = Image.open(io.BytesIO(png)).convert("RGB")
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(drawn, ((size - drawn.width) // 2, (size - drawn.height) // 2))
    return np.asarray(canvas)


def _svg(a: Attributes) -> str:
    import python_avatars as pa

    mouth, eyebrows, _ = words.EXPRESSIONS[a.expression]
    top = pa.HatType[words.HATS[a.top].part] if a.top in words.HATS else pa.HairType[words.HAIR[a.top].part]
    hair = words.HAIR_COLORS.get(a.hair_color, "#000000")
    return pa.Avatar(
        style=pa.AvatarStyle.TRANSPARENT,
        top=top,
        hair_color=hair,
        facial_hair_color=hair,
        hat_color=words.FABRIC_COLORS.get(a.hat_color, "#000000"),
        facial_hair=pa.FacialHairType[words.FACIAL_HAIR[a.facial_hair][0]],
        skin_color=words.SKINS[a.skin],
        eyes=pa.EyeType[words.EYES[a.eyes][0]],
        eyebrows=pa.EyebrowType[eyebrows],
        nose=pa.NoseType.DEFAULT,
        mouth=pa.MouthType[mouth],
        accessory=pa.AccessoryType[words.ACCESSORIES[a.accessory][0]],
        clothing=pa.ClothingType[words.CLOTHES[a.clothing][0]],
        clothing_color=words.FABRIC_COLORS[a.clothing_color],
        shirt_graphic=pa.ClothingGraphic[words.GRAPHICS.get(a.clothing, "NONE")],
    ).render()
