"""Parts of a story around its plot: openings, endings, summaries and passing details.

The slots are those of plots.py.
"""

from __future__ import annotations

OPENINGS = (
    "once upon a time, there was {intro} who lived {p}.",
    "once upon a time, {intro} lived {p}.",
    "once there was {intro} who lived {p}.",
    "{intro} lived {p}.",
    "long ago, {intro} lived {p} and knew every corner of it.",
    "there was once {intro} who spent every day {p}.",
    "this is the story of {intro} who lived {p}.",
)
SETTINGS = (
    "it was {weather} day, and {h} felt {mood}.",
    "one {day}, {h} woke up early and looked around.",
    "every morning {he} said hello to the sun.",
    "{he} liked to sing, and {he} liked to learn new things.",
    "{he} knew many songs, but {he} had few friends.",
    "{he} got up early, because {he} did not want to miss anything.",
    "{he} often sat there for hours and looked at the clouds.",
    "the other people there liked {h} very much.",
    "on this {day}, {h} was all alone.",
    "it was {weather} {day}, and the air was fresh.",
    "",
    "",
)
ENDINGS = (
    "{h} felt {feel}, and so did {k}.",
    "it was the best {day} of {his} life.",
    "and so {h} learned that it is good to help each other.",
    "then they shared {treat} and told each other stories.",
    "they laughed and danced until the stars came out.",
    "{h} went home with a warm heart.",
    "the moon rose, and everything was quiet and good.",
    "that night, {h} slept well and dreamed of {o}.",
    "from that day on, {h} and {k} were the best of friends.",
    "{h} never forgot that day.",
    "after that, {h} and {k} met {p} every {day}.",
    "and whenever {h} thought of {k}, {he} had to smile.",
    "and they lived happily {p}.",
    "{h} and {k} are still friends today.",
    "and if you go there, you can still hear them laugh.",
    "and that is the end of the story.",
)
"""Last sentences of a story."""

SUMMARIES = {
    "find": "{h} found {ao} and gave it back to {k}.",
    "lost": "{h} lost {ao}, and {k} helped {him} to find it.",
    "wish": "{h} wished for {ao}, helped {k} and got it as a present.",
    "broken": "{h} broke {ao}, and {k} mended it.",
    "gift": "{h} made a long journey to give {ao} to {k}.",
    "share": "{h} and {k} both wanted {ao}, but in the end they shared it.",
}
SHORT = {
    "find": "once upon a time, {intro} found {ao} {p} and gave it back to {kintro}.",
    "lost": "{intro} lost {ao} {p}, and {kintro} helped {him} to find it.",
    "wish": "{intro} {p} wished for {ao} and got it from {kintro}.",
    "broken": "once upon a time, {intro} broke {ao} {p}, but {kintro} could mend it.",
    "gift": "{intro} went a long way to bring {ao} to {kintro} {p}.",
    "share": "{p}, {intro} and {kintro} found {ao} and learned to share it.",
}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TIMES = ("in the morning", "in the afternoon", "in the evening", "at noon", "one day", "at dawn")
WEATHERS = ("a sunny", "a rainy", "a windy", "a cold", "a warm", "a cloudy", "a snowy", "a bright")
MOODS = "happy lonely curious sleepy bored hopeful proud calm".split()
FEELINGS = "happy proud thankful glad merry joyful".split()
TREATS = (
    "a warm soup",
    "some bread and cheese",
    "a basket of berries",
    "a big hug",
    "a cup of tea",
    "a piece of chocolate",
    "some fresh milk",
    "a slice of toast",
    "a bowl of rice",
    "some sweet plums",
)
TROUBLES = (
    "a strong wind came up",
    "it began to rain",
    "a thick fog rose",
    "the snow began to fall",
    "it grew dark",
    "a loud noise came from behind",
    "the ground began to shake",
    "a storm broke loose",
)
EMOJI = "😊 🌟 ❤️ 🎉 🌈 ✨ 🌙 😄 🌻 🍀 🐾 🎈".split()
