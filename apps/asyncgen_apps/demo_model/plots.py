"""The six plots of the stories: stages in order, each with alternative sentences.

Slots: ``{intro}`` first mention of the hero, ``{h}`` later mentions, ``{he} {him} {his}``
pronouns; ``{kintro} {k} {khe} {khim} {khis}`` the same for the second character; ``{ao}`` first
mention of the object, ``{o}`` later ones, ``{noun}`` the bare noun; ``{p}`` the place with its
preposition, ``{pl}`` without; ``{q}`` another place; ``{day}``, ``{time}``, ``{weather}``,
``{mood}``, ``{treat}``, ``{trouble}``. Sentences are capitalised after filling in.
"""

from __future__ import annotations

FIND = (
    (
        "one {day}, {he} found {ao} {p}.",
        "{time}, {he} saw something strange. it was {ao}, and nobody was near.",
        "on {day}, {h} was walking along when {he} found {ao}.",
        "one {day}, {he} was looking for mushrooms when {he} found {ao} instead.",
        "{time}, {he} nearly stumbled over something. {he} had found {ao}!",
        "one day {he} looked down and found {ao} on the ground.",
    ),
    (
        '"what a nice {noun}!" said {h}. "who has lost it?"',
        '"oh," said {h}, "this is {ao}! I wonder whose it is."',
        "{h} picked up {o} and looked at it from all sides.",
        '"somebody will miss this {noun}," thought {h}.',
        "{h} wiped the dust from {o} and smiled.",
        "{he} wanted to keep {o}, but {he} knew that somebody must miss it.",
    ),
    (
        "then {he} heard somebody crying. it was {kintro}.",
        "soon {kintro} came along and looked very sad.",
        "behind a bush sat {kintro} with tears in {khis} eyes.",
        "not far away, {kintro} was looking for something in the grass.",
        "so {h} asked everyone, until {he} met {kintro}.",
        "{he} carried {o} from door to door. at last {kintro} opened.",
    ),
    (
        '"I have lost my {noun}," said {k}. "have you seen it?"',
        "{k} had been looking for {o} all day long.",
        '"I had it this morning, and now it is gone," said {k}.',
        '{h} asked what was wrong. "I miss my {noun}," said {k}.',
        '"that is my {noun}!" cried {k}. "I lost it {q}."',
        "{k} had lost {o} {q} and could not sleep without it.",
    ),
    (
        "{h} gave {o} back, and {k} was so happy that {khe} jumped into the air.",
        'so {h} gave it back. "thank you," said {k}, and {khe} gave {him} {treat}.',
        '"here it is," said {h}. {k} hugged {him} and smiled.',
        "{h} was glad to give {o} to {k}, who thanked {him} again and again.",
        '"is this yours?" asked {h}. {k} nodded and laughed through {khis} tears.',
        "{h} laid {o} in front of {k}, and {khis} face lit up.",
    ),
)
LOST = (
    (
        "{he} had {ao} that {he} loved more than anything.",
        "{his} dearest thing was {ao}.",
        "for {his} birthday, {he} got {ao}.",
        "{he} had saved for a whole year to buy {ao}.",
        "{his} uncle had sent {him} {ao} from across the sea.",
        "{he} owned {ao} and took it everywhere.",
    ),
    (
        "but one {day}, {o} was gone!",
        "but {time}, {trouble} and {o} was lost.",
        "one {day} {he} went out to play, and when {he} came back, {o} was gone.",
        "but when {he} woke up on {day}, {o} was not there any more.",
        "one {day}, {he} left {o} outside, and {trouble}. in the end it was gone.",
        "then {trouble}, and {h} could not find {o} anywhere.",
    ),
    (
        "{h} looked under the bed, behind the door and even {q}, but it was not there.",
        "{he} searched and searched, and {he} began to cry.",
        '"where is my {noun}?" cried {h}.',
        "{h} sat down and did not know what to do.",
        "{he} asked the neighbours, but nobody had seen it.",
        "{h} could not eat and could not sleep.",
    ),
    (
        '{kintro} heard {him}. "do not be sad," said {k}. "I will help you."',
        'then {kintro} came by. "let us look together," said {k}.',
        "just then, {kintro} passed by and stopped.",
        '{kintro} had an idea. "where did you see it last?" asked {k}.',
        "luckily, {kintro} was near and wanted to help.",
        '"what is wrong?" asked {kintro}. {h} told {khim} everything.',
    ),
    (
        "they looked {q}, and there it was! {k} had found {o}.",
        "after a long time, {k} found {o} {q}.",
        "{k} followed the tracks and came back with {o}.",
        "they searched until the evening. then {k} called out: {o} was {q}!",
        "{k} had sharp eyes. {khe} soon saw {o} {q}.",
        'they went out together. "look!" said {k}. {o} was {q}.',
    ),
    (
        '"thank you, {kname}!" said {h}, and {he} held {o} tight.',
        "{h} was so happy that {he} gave {k} {treat}.",
        '{h} laughed with joy. "you are a true friend," {he} said.',
        "never again did {h} leave {o} alone.",
        '"how can I ever thank you?" asked {h}. {k} just smiled.',
    ),
)
WISH = (
    (
        "more than anything, {he} wished for {ao}.",
        "{he} had always wanted {ao}.",
        'every night {he} said, "I wish I had {ao}."',
        "{his} greatest dream was to have {ao}.",
        "{he} had heard of {ao} that was for sale {q}.",
        "one {day}, {he} saw {ao} in a shop window and wanted to have it.",
    ),
    (
        "but {he} had no money at all.",
        "but a thing like that was hard to find.",
        "{he} looked for one everywhere, even {q}, but there was none.",
        '"you must wait until you are older," everybody said.',
        "{he} asked {q}, but nobody could give {him} one.",
        "so {he} tried to make one, but {trouble}.",
    ),
    (
        "then {he} met {kintro} who needed help.",
        "{time}, {kintro} knocked at {his} door.",
        "one {day}, {trouble}, and {kintro} asked for shelter.",
        "{q}, {he} met {kintro}, who had lost the way.",
        "on the way home, {he} met {kintro}, who was tired and hungry.",
    ),
    (
        "{h} gave {k} {treat} and a place to rest.",
        "{h} worked for {k} for three long days, and {he} never complained.",
        "{h} helped {k} to carry wood, and {he} asked for nothing.",
        "{h} took {khim} by the hand and showed {khim} the way home.",
        "{h} listened to {khim} and shared {treat}.",
        "{h} helped {khim} to clean the whole house.",
    ),
    (
        'to say thank you, {k} gave {him} {ao}. "this {noun} is for you," said {k}.',
        '"you have been so good to me," said {k}, and {khe} gave {h} {ao}.',
        "the next day, {k} came back with a present. it was {ao}!",
        "{k} winked and pulled out {ao}. {khe} had made it for {him}.",
        "a week later, {h} found {ao} at the door. it came from {k}.",
    ),
    (
        "{h} could hardly believe it.",
        "{his} wish had come true.",
        '"sometimes a wish needs a friend," said {k}.',
        "{he} held {o} and did not let go of it all day.",
        "{h} was {feel} and thanked {k} many times.",
    ),
)
BROKEN = (
    (
        "{he} had {ao} that {he} used every day.",
        "{his} grandmother had given {him} {ao}.",
        "{he} was very proud of {ao}.",
        "on the shelf stood {ao}, and nobody was allowed to touch it.",
        "{he} took good care of {ao}.",
    ),
    (
        "one {day}, {trouble} and {o} broke in two.",
        "but {time}, {o} fell down and broke.",
        "then {he} stumbled over a root, and {o} broke.",
        "one {day}, {he} was in a hurry and dropped {o}.",
        "{time}, {trouble}. {o} fell and broke into three pieces.",
    ),
    (
        '"oh no, my {noun}!" cried {h}.',
        "{h} tried to mend it, but it was too hard.",
        "{h} looked at the pieces and began to cry.",
        '"who can mend a {noun}?" {he} asked everyone.',
        "{he} was so sad that {he} did not eat {his} supper.",
    ),
    (
        "{kintro} saw this and came closer.",
        "so {he} went to see {kintro} who lived {q}.",
        "{his} neighbour, {kintro}, knew what to do.",
        "luckily, {kintro} was good at mending things.",
        '"show me," said {kintro}, who was passing by.',
    ),
    (
        "{k} took some glue and some string and mended {o}.",
        "together they worked until late, and {k} mended {o}.",
        '"I can mend it," said {k}. and so {khe} did.',
        "{k} worked all night with a thread as thin as a hair.",
        "it took {k} three days and a lot of patience.",
    ),
    (
        "now {o} was as good as new.",
        '"it looks even better than before!" said {h}.',
        "{h} thanked {k} and gave {khim} {treat}.",
        '"be careful with it now," said {k} and laughed.',
        "nobody could see that {o} had ever been broken.",
    ),
)
GIFT = (
    (
        "one {day}, {he} wanted to bring {ao} to {kintro}.",
        "{his} friend, {kintro}, had a birthday, so {he} chose {ao} as a present.",
        "{he} made {ao} for {kintro}, who was ill in bed.",
        "{he} had {ao}, and {he} knew that {kintro} needed it more.",
        "{he} promised to bring {ao} to {kintro}.",
    ),
    (
        "{k} lived far away, {q}.",
        "the way was long, and {he} had to go all the way to {ql}.",
        "{he} packed {o} and set off for {ql}.",
        "{k} was waiting {q}, so {he} got up before dawn.",
    ),
    (
        "on the way, {trouble}, and {he} almost turned back.",
        "then {trouble}. {h} was afraid, but {he} did not give up.",
        "soon {he} came to a wide stream, and there was no way across.",
        "halfway there, {trouble}, and {he} lost the path.",
        "after some hours, {he} was so tired that {he} could not walk any more.",
    ),
    (
        "{he} held {o} close and took one step after another.",
        "{he} waited under a tree until it was over. {o} was safe.",
        "but {he} thought of {k}, and that gave {him} new strength.",
        "an old woman showed {him} a safer way.",
        '"I must be brave," {he} said, and {he} went on.',
    ),
    (
        "at last {he} stood before {k} and gave {khim} {o}.",
        "in the evening {he} arrived. {k} was so happy about {o}!",
        '"this {noun} is for you," said {h}. {k} could not stop smiling.',
        "late at night {he} knocked at the door and gave {o} to {k}.",
        '"you came all this way?" asked {k}, and {khe} took {o} with shining eyes.',
    ),
    (
        '"nobody has ever given me such a fine {noun}," said {k}.',
        "{k} made tea, and they sat by the fire until late.",
        "{k} put {o} in the best place of the house.",
        "{h} was tired, but {he} had never been so {feel}.",
        '"the best present is that you are here," said {k}.',
    ),
)
SHARE = (
    (
        "one {day}, {he} and {kintro} saw {ao} at the same time.",
        "{time}, {he} found {ao}. but {kintro} had seen it too.",
        "there was {ao} {p}, and both {he} and {kintro} wanted it.",
        "one {day}, {kintro} came by while {h} was playing with {ao}.",
        "somebody had left {ao} {p}. {h} took one end, and {kintro} took the other.",
    ),
    (
        '"it is mine!" said {h}. "no, it is mine!" said {k}.',
        "they pulled and pulled, and neither would let go.",
        "they both shouted, and neither would listen.",
        '"give it to me!" cried {k}. "never!" said {h}.',
        "{h} was angry, and {k} was even angrier.",
    ),
    (
        "then {trouble}, and {o} rolled away.",
        "at last they were tired and sat down back to back.",
        "{h} looked at {k} and saw that {khe} was crying.",
        "suddenly {h} had to laugh, and then {k} laughed, too.",
        "for a whole hour, nobody said a word.",
    ),
    (
        '"let us share it," said {h}.',
        '"you can have {o} today," said {h}, "and I will have it tomorrow."',
        '"it is more fun together," said {k}, and {h} agreed.',
        '"what if we take turns?" asked {k}. {h} thought about it and nodded.',
        '"I am sorry," said {h}. "I am sorry, too," said {k}.',
    ),
    (
        "so they took turns with {o}, and both were glad.",
        "they played with {o} all day and forgot that they had been angry.",
        "after that they shared {o} and never fought again.",
        "now {o} belonged to both of them, and that was even better.",
        "{h} had {o} in the morning, and {k} had it in the evening.",
    ),
)
PLOTS = {
    "find": FIND,
    "lost": LOST,
    "wish": WISH,
    "broken": BROKEN,
    "gift": GIFT,
    "share": SHARE,
}
