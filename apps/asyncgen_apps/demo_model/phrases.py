"""The phrasings of requests, of questions about stories, and of system prompts."""

from __future__ import annotations

ASKS = (
    "Tell me a story about {x}.",
    "Tell me a story about {x}.",
    "Tell me a short story about {x}.",
    "Write a story about {x}.",
    "Write a short story about {x}.",
    "Please tell me a story about {x}.",
    "Can you tell me a story about {x}?",
    "Could you write a story about {x}, please?",
    "I would like to hear a story about {x}.",
    "Tell me about {x}.",
    "Make up a story about {x}.",
    "A story about {x}, please.",
    "Story about {x}",
    "Do you know a story about {x}?",
)
ANOTHER = (
    "Tell me another one about {x}.",
    "Now tell me a story about {x}.",
    "Another story, please, this time about {x}.",
    "And now one about {x}.",
    "Nice! Now write one about {x}.",
)
OPEN = ("Tell me a story.", "Tell me a story, please.", "Write a short story.", "I am bored.")
VERBS = {
    "find": ("who finds {ao}", "who found {ao}"),
    "lost": ("who loses {ao}", "who lost {ao}", "who is looking for {ao}"),
    "wish": ("who wishes for {ao}", "who wants {ao}"),
    "broken": ("who breaks {ao}", "and a broken {noun}"),
    "gift": ("who brings {ao} to a friend", "who carries {ao}"),
    "share": ("who shares {ao}", "who must share {ao}"),
}
QUESTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "find": (
        ("What did {h} find?", "{h} found {ao}."),
        ("Whose {noun} was it?", "The {noun} belonged to {k}."),
        ("Who had lost the {noun}?", "{k} had lost the {noun}."),
        ("What did {he} find?", "{he} found {ao}."),
    ),
    "lost": (
        ("What did {h} lose?", "{h} lost {ao}."),
        ("Who found the {noun}?", "{k} found the {noun}."),
        ("Who helped {h}?", "{k} helped {h}."),
        ("What did {he} lose?", "{he} lost {ao}."),
    ),
    "wish": (
        ("What did {h} wish for?", "{h} wished for {ao}."),
        ("Who gave {h} the {noun}?", "{k} gave {him} the {noun}."),
        ("Whom did {h} help?", "{h} helped {k}."),
        ("What did {he} get?", "{he} got {ao}."),
    ),
    "broken": (
        ("What broke?", "The {noun} broke."),
        ("Who mended the {noun}?", "{k} mended the {noun}."),
        ("Who helped {h}?", "{k} helped {h}."),
    ),
    "gift": (
        ("Who got the {noun}?", "{k} got the {noun}."),
        ("What did {h} bring?", "{h} brought {ao}."),
        ("For whom was the {noun}?", "The {noun} was for {k}."),
    ),
    "share": (
        ("Who else wanted the {noun}?", "{k} wanted it, too."),
        ("What did they share?", "They shared {ao}."),
        ("What did {h} and {k} share?", "They shared {ao}."),
    ),
}
GENERAL = (
    ("Who is the story about?", "The story is about {h} and {k}."),
    ("Who is in the story?", "{h} and {k} are in the story."),
    ("Where did {h} live?", "{h} lived {p}."),
    ("Where does the story take place?", "The story takes place {p}."),
    ("What colour was the {noun}?", "{colour}"),
    ("What colour was the {noun}?", "{colour}"),
    ("Can you make it shorter?", "{summary}"),
    ("Tell it in one sentence.", "{summary}"),
    ("How old is {h}?", "The story does not say."),
    ("What did {h} eat for breakfast?", "The story does not say."),
    ("What is the name of {h}'s brother?", "The story does not say."),
    ("What happened in the story?", "{summary}"),
)
SYSTEMS = (
    "You are a helpful storyteller.",
    "You are a helpful assistant.",
    "You tell stories to children.",
    "You are a friendly little model.",
)
BRIEF = ("Answer in one sentence.", "Answer briefly.", "Keep it very short.")
