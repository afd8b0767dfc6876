"""The vocabulary of the drawn faces: what each part is called in python-avatars and in a caption.

Every phrase is unique, so that a caption can be read back. `{}` stands for a color word.
Parts left out, and why, are listed in data/README.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Person = Literal["woman", "man", "person"]


class Top(NamedTuple):
    """A hair style or hat."""

    part: str  # member of pa.HairType, or of pa.HatType for hats
    phrase: str  # with {} for the color
    person: Person  # without facial hair; with it, always a man


HAIR = {
    "long": Top("STRAIGHT_1", "long {} hair", "woman"),
    "straight": Top("STRAIGHT_STRAND", "straight {} hair", "woman"),
    "big wavy": Top("BIG_HAIR", "big wavy {} hair", "woman"),
    "long wavy": Top("CURVY", "long wavy {} hair", "woman"),
    "loose": Top("LOOSE_HAIR", "loose {} hair", "woman"),
    "shoulder-length": Top("LONG_NOT_TOO_LONG", "shoulder-length {} hair", "woman"),
    "bob": Top("BOB", "a {} bob", "woman"),
    "bob with bangs": Top("MIA_WALLACE", "a {} bob with bangs", "woman"),
    "bun": Top("BUN", "{} hair in a bun", "woman"),
    "pixie cut": Top("PIXIE", "a {} pixie cut", "woman"),
    "curly": Top("CURLY", "curly {} hair", "woman"),
    "afro": Top("FRO", "a big {} afro", "woman"),
    "afro with headband": Top("FRO_BAND", "a {} afro with a headband", "woman"),
    "flower crown": Top("FRIDA", "{} hair with a flower crown", "woman"),
    "braids": Top("TWIST_LONG_HAIR", "long {} braids", "woman"),
    "braided ponytail": Top("BRAIDS", "a braided {} ponytail", "woman"),
    "half-shaved": Top("HALF_SHAVED", "{} hair shaved on one side", "woman"),
    "dreadlocks": Top("DREADS", "long {} dreadlocks", "woman"),
    "wild": Top("WILD", "wild {} hair", "woman"),
    "bald": Top("NONE", "", "man"),
    "short": Top("SHORT_FLAT", "short {} hair", "man"),
    "buzz cut": Top("BUZZCUT", "a {} buzz cut", "man"),
    "short wavy": Top("SHORT_WAVED", "short wavy {} hair", "man"),
    "short curly": Top("SHORT_CURLY", "short curly {} hair", "man"),
    "mohawk": Top("MOHAWK", "a {} mohawk", "man"),
    "quiff": Top("QUIFF", "a {} quiff", "man"),
    "pompadour": Top("POMPADOUR", "a {} pompadour", "man"),
    "balding": Top("SIDES", "{} hair only on the sides", "man"),
    "frizzy": Top("SHORT_DREADS_2", "frizzy {} hair", "man"),
    "shaggy": Top("SHAGGY", "shaggy {} hair", "man"),
    "mullet": Top("SHAGGY_MULLET", "a {} mullet", "man"),
    "messy": Top("MOWGLI", "messy {} hair", "man"),
    "cornrows": Top("CORNROWS", "{} cornrows", "man"),
}

HATS = {
    "beanie": Top("WINTER_HAT_3", "a {} beanie", "person"),
    "cat beanie": Top("WINTER_HAT_4", "a {} beanie with cat ears", "person"),
    "ear flaps": Top("WINTER_HAT_1", "a {} hat with ear flaps", "person"),
    "knitted hat": Top("WINTER_HAT_2", "a {} knitted hat", "person"),
    "wide hat": Top("HAT", "a wide {} hat", "person"),
    "turban": Top("TURBAN", "a {} turban", "man"),
    "hijab": Top("HIJAB", "a {} hijab", "woman"),
}

BEARDABLE = ("afro", "dreadlocks", "wild", "beanie", "ear flaps", "knitted hat", "wide hat", "turban")
"""Tops, besides all of the men's hair, that go with facial hair."""

HAIR_COLORS = {
    "black": "#2C1B18",
    "brown": "#724133",
    "auburn": "#A55728",
    "blond": "#D6B370",
    "platinum": "#ECDCBF",
    "red": "#C93305",
    "gray": "#B9B9BE",
    "pink": "#F59797",
}

FABRIC_COLORS = {
    "black": "#262E33",
    "gray": "#929598",
    "white": "#E9EDF0",
    "blue": "#3B7DD8",
    "light blue": "#8FD3FF",
    "navy": "#25456B",
    "green": "#3DA35D",
    "yellow": "#FFD84D",
    "orange": "#FF8C32",
    "red": "#E5383B",
    "pink": "#FF6FB0",
    "purple": "#8E5BC4",
}

SKINS = {"pale": "#FFDBB4", "light": "#EDB98A", "tan": "#D08B5B", "brown": "#AE5D29", "dark": "#614335"}

FACIAL_HAIR = {  # part of pa.FacialHairType, phrase; the color word stands only where the head shows no hair
    "none": ("NONE", ""),
    "short beard": ("BEARD_LIGHT", "a {} short beard"),
    "full beard": ("BEARD_MEDIUM", "a {} full beard"),
    "long beard": ("BEARD_MAGESTIC", "a {} long beard"),
    "mustache": ("MOUSTACHE_MAGNUM", "a {} mustache"),
    "curled mustache": ("MOUSTACHE_FANCY", "a {} curled mustache"),
}

ACCESSORIES = {
    "none": ("NONE", ""),
    "glasses": ("PRESCRIPTION_2", "glasses"),
    "round glasses": ("ROUND", "round glasses"),
    "sunglasses": ("SUNGLASSES", "sunglasses"),
    "white sunglasses": ("KURT", "white sunglasses"),
    "eye patch": ("EYEPATCH", "an eye patch"),
}

DARK_GLASSES = ("sunglasses", "white sunglasses")
"""Nothing of the eyes shows behind these: they stay `open` in the picture and unsaid in the caption."""

EYES = {
    "open": ("DEFAULT", ""),
    "closed": ("CLOSED", "closed eyes"),
    "happy": ("HAPPY", "happy eyes"),
    "wink": ("WINK", "a winking eye"),
    "sideways": ("SIDE", "eyes looking sideways"),
    "wide": ("SURPRISED", "wide eyes"),
    "rolling": ("EYE_ROLL", "rolling eyes"),
    "narrow": ("SQUINT", "narrow eyes"),
    "tear": ("CRY", "a tear"),
}

EXPRESSIONS = {  # mouth, eyebrows, phrase
    "smiling": ("SMILE", "DEFAULT_NATURAL", "smiling"),
    "laughing": ("BIG_SMILE", "RAISED_EXCITED_NATURAL", "laughing"),
    "gentle": ("TWINKLE", "DEFAULT_NATURAL", "smiling gently"),
    "serious": ("SERIOUS", "FLAT_NATURAL", "looking serious"),
    "sad": ("SAD", "SAD_CONCERNED_NATURAL", "looking sad"),
    "worried": ("CONCERNED", "SAD_CONCERNED_NATURAL", "looking worried"),
    "surprised": ("DISBELIEF", "RAISED_EXCITED_NATURAL", "looking surprised"),
    "angry": ("SERIOUS", "ANGRY_NATURAL", "looking angry"),
    "shouting": ("SCREAM_OPEN", "DEFAULT_NATURAL", "shouting"),
    "teeth": ("GRIMACE", "DEFAULT_NATURAL", "showing teeth"),
    "tongue": ("TONGUE", "DEFAULT_NATURAL", "sticking out the tongue"),
}

CLOTHES = {  # part of pa.ClothingType, phrase
    "hoodie": ("HOODIE", "a {} hoodie"),
    "t-shirt": ("SHIRT_CREW_NECK", "a {} t-shirt"),
    "v-neck shirt": ("SHIRT_V_NECK", "a {} v-neck shirt"),
    "scoop-neck top": ("SHIRT_SCOOP_NECK", "a {} scoop-neck top"),
    "sweater": ("COLLAR_SWEATER", "a {} sweater with a white collar"),
    "overalls": ("OVERALL", "{} overalls"),
    "blazer": ("BLAZER_SHIRT", "a dark blazer over a {} shirt"),
    "tuxedo": ("BOND_SUIT", "a tuxedo with a {} shirt"),
    "suit": ("SHIRT_WICK", "a black suit with a {} tie"),
    "bear shirt": ("GRAPHIC_SHIRT", "a {} shirt with a bear"),
    "bat shirt": ("GRAPHIC_SHIRT", "a {} shirt with a bat"),
    "skull shirt": ("GRAPHIC_SHIRT", "a {} shirt with a skull"),
    "diamond shirt": ("GRAPHIC_SHIRT", "a {} shirt with a diamond"),
    "pizza shirt": ("GRAPHIC_SHIRT", "a {} shirt with a slice of pizza"),
}

GRAPHICS = {
    "bear shirt": "BEAR",
    "bat shirt": "BAT",
    "skull shirt": "SKULL",
    "diamond shirt": "DIAMOND",
    "pizza shirt": "PIZZA",
}
