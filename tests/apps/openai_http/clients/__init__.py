"""Programs of others at our server, and what they sent, recorded and sent again.

``test_<client>.py`` runs a client as it comes, under the marker ``clients``; ``.ci/clients``
has them all. ``recorded/<client>.json`` holds what each client sent, written by ``recording.py``;
``test_recorded.py`` sends it again where no client is installed, and asserts the same.
"""

PACKAGES = {
    "guidellm": ("guidellm",),
    "instructor": ("instructor",),
    "langchain": ("langchain-openai",),
    "langchain_tools": ("langchain-openai",),
    "litellm": ("litellm",),
    "llm": ("llm",),
    "lm_eval": ("lm-eval",),
    "load_chat": ("gradio", "openai"),
    "openai": ("openai",),
    "openai_agents": ("openai-agents",),
    "openai_tools": ("openai",),
    "pydantic_ai": ("pydantic-ai-slim",),
    "schemathesis": ("schemathesis",),
}
"""What must be installed for each client."""
