"""Models behind OpenAI-style HTTP: vLLM, SGLang, llama.cpp, Ollama, TGI, a LiteLLM proxy, OpenAI."""
