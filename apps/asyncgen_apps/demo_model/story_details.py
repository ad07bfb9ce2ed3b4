"""Details that fit a place or an object, so that stories stay on their topic."""

from __future__ import annotations

PLACE_NOTES: dict[str, str] = {
    "forest": "the trees whispered in the wind",
    "garden": "the beans grew taller every day",
    "village": "smoke rose from the chimneys",
    "kitchen": "it always smelled of soup there",
    "barn": "the hay was warm and soft there",
    "castle": "the walls were thick and grey",
    "valley": "the grass was long and green there",
    "meadow": "the grass was full of little voices",
    "cave": "it was dark and cool there",
    "library": "it was always very quiet there",
    "attic": "dust danced in the light there",
    "school": "the children sang there every morning",
    "market": "everyone shouted and laughed there",
    "park": "the benches stood in the shade there",
    "orchard": "the branches hung low there",
    "jungle": "the air was hot and full of sounds",
    "desert": "the sand was hot and the sky was wide",
    "tower": "the stairs went round and round",
    "mill": "the big stones turned all day",
    "cottage": "the roof was made of straw",
    "swamp": "the ground was wet and soft there",
    "town": "the streets were narrow and full of life",
    "cellar": "it was cold and dark there",
    "museum": "every room was full of old things",
    "field": "the wheat stood as high as a child",
    "harbour": "the ships came and went with the tide",
    "beach": "the waves rolled over the sand",
    "station": "people came and went all day",
    "lake": "the water was as smooth as glass",
    "waterfall": "the water thundered over the rocks",
    "bakery": "it always smelled of fresh bread there",
    "lighthouse": "a bright light turned there all night",
    "farm": "there was work to do from dawn to dusk",
    "river": "the water ran fast and clear",
    "bridge": "many people passed by there",
    "well": "the water was deep and cold there",
    "hill": "one could see far over the land",
    "island": "there was water on every side",
    "mountain": "the snow never melted there",
    "roof": "the clouds seemed very close there",
    "shore": "the waves sang day and night",
    "train": "the land flew past the windows",
    "ship": "the floor rocked from side to side",
    "cliff": "the sea roared far below",
}
KINDS: dict[str, tuple[str, ...]] = {
    "music": tuple("drum bell whistle flute guitar violin trumpet piano".split()),
    "food": tuple("pumpkin apple pear cherry melon cake pie cookie loaf honeycomb egg".split()),
    "clothes": tuple("hat scarf coat shoe boot glove blanket quilt pillow umbrella".split()),
    "light": tuple("lantern candle lamp mirror".split()),
    "toy": tuple("kite ball doll puppet balloon marble skate sled bicycle wagon".split()),
    "jewel": tuple("pearl coin ring crown necklace ribbon button".split()),
    "box": tuple("basket bucket cup bowl teapot box bag jar bottle kettle cart".split()),
    "nature": tuple(
        "feather shell stone flower rose tulip sunflower acorn pinecone leaf seed nest".split()
    ),
    "tool": tuple(
        "key map ladder rope broom spoon clock watch compass telescope wheel stamp pencil brush "
        "anchor sail oar net hammer needle thimble boat book letter painting".split()
    ),
}
KIND_NOTES: dict[str, tuple[str, ...]] = {
    "music": (
        "it made a lovely sound.",
        "when one played it, everybody had to dance.",
        "its sound was soft and clear.",
    ),
    "food": (
        "it smelled wonderful.",
        "it looked so good that one wanted to eat it at once.",
        "there was enough of it for everyone.",
    ),
    "clothes": (
        "it kept the cold away.",
        "it was soft and warm.",
        "it fitted as if it had been made for {him}.",
    ),
    "light": (
        "it shone brightly, even at night.",
        "it glowed like a little star.",
        "with it, nobody had to be afraid of the dark.",
    ),
    "toy": (
        "it was great fun to play with.",
        "one could play with it for hours.",
        "all the children wanted to try it.",
    ),
    "jewel": (
        "it sparkled in the sun.",
        "it was small, but it was worth a lot.",
        "it shone so brightly that {h} had to blink.",
    ),
    "box": (
        "there was room for many things in it.",
        "it was empty, but it was well made.",
        "it had a tiny picture of the sea on one side.",
    ),
    "nature": (
        "nothing in the whole world was as beautiful.",
        "it felt smooth and cool.",
        "it seemed to whisper of faraway places.",
    ),
    "tool": (
        "it was old, but it was very useful.",
        "somebody had made it with great care.",
        "with it, one could do almost anything.",
    ),
}
KIND_OF = {noun: kind for kind, nouns in KINDS.items() for noun in nouns}
ANY_NOTES = (
    "nobody knew what it was good for, but it was beautiful.",
    "there was only one of it in the whole world.",
    "it was the strangest thing {he} had ever seen.",
)


def notes(thing: str) -> tuple[str, ...]:
    """Find sentences that fit an object.

    Args:
        thing: The object's noun, perhaps an invented one.

    Returns:
        Sentence templates.
    """
    return KIND_NOTES[KIND_OF[thing]] if thing in KIND_OF else ANY_NOTES
