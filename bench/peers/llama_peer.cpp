// llama.cpp as a peer of `forerun bench run` (crates/bench/src/peers.rs documents the protocol).
//
// Usage: llama_peer -m TARGET.gguf [-md DRAFTER.gguf] [llama.cpp's own options: -t, -c, -fa, -ctk, …]
//
// Plain decoding runs one forward pass per token and takes the token with the largest logit. Drafting
// follows llama.cpp's own examples/speculative-simple and uses its common/speculative (draft-simple,
// ngram-simple), so that the comparison measures llama.cpp's implementation. Models stay loaded. Every
// answer starts with empty caches.

#include "arg.h"
#include "common.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"
#include "speculative.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using json = nlohmann::json;

// The maximum number of draft tokens, the same as forerun's.
static const int MAX_DRAFT_TOKENS = 64;

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

// Returns the process's peak memory since the last call in bytes, or 0 if the system does not report it.
static uint64_t peak_memory_bytes() {
    std::ifstream status("/proc/self/status");
    uint64_t kilobytes = 0;
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("VmHWM:", 0) == 0) kilobytes = std::stoull(line.substr(6));
    }
    std::ofstream("/proc/self/clear_refs") << "5";
    return kilobytes * 1024;
}

struct Reply {
    std::vector<llama_token> tokens;
    std::vector<std::pair<uint64_t, int>> commits;
    std::vector<std::pair<int, int>> rounds;
    std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();

    uint64_t now_ns() const {
        auto passed = std::chrono::steady_clock::now() - started;
        return std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
    }

    void commit(const std::vector<llama_token> & ids) {
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        commits.emplace_back(now_ns(), (int) ids.size());
    }
};

struct Peer {
    common_params params;
    common_init_result_ptr target;
    common_speculative_init_result_ptr drafter;
    llama_context * context = nullptr;
    llama_context * draft_context = nullptr;
    const llama_vocab * vocab = nullptr;
    common_sampler_ptr sampler;
    std::map<std::pair<std::string, int>, common_speculative_ptr> speculators;

    void load(int argc, char ** argv) {
        params.n_predict = -1;
        if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_SPECULATIVE)) exit(1);
        params.speculative.draft.n_max = MAX_DRAFT_TOKENS;
        // Greedy decoding as in llama.cpp's examples: top-k with k = 1, and no other sampler.
        params.sampling.temp = 0.0f;
        params.sampling.top_k = 1;
        params.sampling.samplers = { COMMON_SAMPLER_TYPE_TOP_K };
        const auto limits = common_speculative_get_output_limits(
            params.n_batch, params.n_parallel, MAX_DRAFT_TOKENS);
        params.n_outputs_max = limits.total;
        params.n_outputs_max_per_seq = limits.per_seq;
        llama_backend_init();
        target = common_init_from_params(params);
        context = target->context();
        if (!context) throw std::runtime_error("the target cannot be loaded");
        vocab = llama_model_get_vocab(target->model());
        if (params.speculative.has_dft()) {
            common_params draft_params = common_base_params_to_speculative(params);
            drafter = common_speculative_init_from_params(draft_params, target->model(), context);
            draft_context = drafter->context();
            if (!draft_context) throw std::runtime_error("the drafter cannot be loaded");
        }
        params.speculative.draft.ctx_tgt = context;
        params.speculative.draft.ctx_dft = draft_context;
        sampler.reset(common_sampler_init(target->model(), params.sampling));
    }

    // Returns the speculator for a kind and a draft length. It is created on first use.
    common_speculative * speculator(const std::string & kind, int draft_tokens) {
        auto & speculator = speculators[{ kind, draft_tokens }];
        if (!speculator) {
            common_params_speculative speculative_params = params.speculative;
            if (kind == "model") {
                if (!draft_context) throw std::runtime_error("there is no drafter: give one with -md");
                speculative_params.types = { COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE };
                speculative_params.draft.n_max = draft_tokens;
            } else if (kind == "prompt-lookup") {
                speculative_params.types = { COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE };
                // The default n-gram has twelve tokens, which rarely match. forerun's has three.
                speculative_params.ngram_simple.size_n = 3;
                speculative_params.ngram_simple.size_m = draft_tokens;
            } else {
                throw std::runtime_error("unknown drafter " + kind + ": use none, model or prompt-lookup");
            }
            speculator.reset(common_speculative_init(speculative_params, 1));
            if (!speculator) throw std::runtime_error("llama.cpp cannot create a speculator for " + kind);
        }
        return speculator.get();
    }

    void decode(common_batch & batch) {
        if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
            throw std::runtime_error("llama.cpp cannot decode the batch: check that the context (-c) is long enough");
        }
    }

    void clear() {
        llama_memory_clear(llama_get_memory(context), false);
        if (draft_context) llama_memory_clear(llama_get_memory(draft_context), false);
        common_sampler_reset(sampler.get());
    }

    bool ends_answer(llama_token token, bool ignore_eos) const {
        return !ignore_eos && llama_vocab_is_eog(vocab, token);
    }

    llama_token most_probable() const {
        const float * logits = llama_get_logits_ith(context, -1);
        return (llama_token) (std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
    }

    void plain(Reply & reply, const std::vector<llama_token> & prompt, int max_tokens, bool ignore_eos) {
        common_batch batch(context);
        for (size_t i = 0; i < prompt.size(); ++i) batch.add(prompt[i], i, 0, i + 1 == prompt.size());
        int past = (int) prompt.size();
        while (true) {
            decode(batch);
            const llama_token token = most_probable();
            reply.commit({ token });
            if ((int) reply.tokens.size() >= max_tokens || ends_answer(token, ignore_eos)) return;
            batch.clear();
            batch.add(token, past++, 0, true);
        }
    }

    // As examples/speculative-simple of llama.cpp, but without checkpoints, which plain Transformers do
    // not need.
    void speculative(Reply & reply, common_speculative * spec, const std::vector<llama_token> & prompt,
                 int max_tokens, bool ignore_eos) {
        llama_tokens text(prompt.begin(), prompt.end() - 1);
        llama_token last = prompt.back();
        int past = (int) text.size();
        if (!text.empty()) {
            common_batch batch(context);
            for (size_t i = 0; i < text.size(); ++i) batch.add(text[i], i, 0, false);
            decode(batch);
            if (!common_speculative_process(spec, batch)) throw std::runtime_error("the drafter failed");
        }
        common_speculative_begin(spec, 0, text);
        common_batch batch(context);
        while (true) {
            llama_tokens draft;
            const int max_draft = max_tokens - (int) reply.tokens.size() - 1;
            if (max_draft > 0) {
                common_speculative_get_draft_params(spec, 0) = {
                    /* .drafting = */ true, /* .n_max = */ max_draft, /* .pos0 = */ past,
                    /* .id_last = */ last,  /* .prompt = */ &text, /* .result = */ &draft,
                };
                common_speculative_draft(spec);
            }
            if (draft_context) llama_memory_seq_rm(llama_get_memory(draft_context), 0, past, -1);
            batch.clear();
            batch.add(last, past++, 0, true);
            for (size_t i = 0; i < draft.size(); ++i) batch.add(draft[i], past + i, 0, true);
            decode(batch);
            if (!common_speculative_process(spec, batch)) throw std::runtime_error("the drafter failed");
            auto ids = common_sampler_sample_and_accept_n(sampler.get(), context, draft);
            const int accepted = (int) ids.size() - 1;
            common_speculative_accept(spec, 0, accepted);
            reply.rounds.emplace_back((int) draft.size(), accepted);
            past += accepted;
            bool ended = false;
            for (size_t i = 0; i < ids.size() && !ended; ++i) {
                text.push_back(last);
                last = ids[i];
                ended = ends_answer(last, ignore_eos);
                if (ended) ids.resize(i + 1);
            }
            reply.commit(ids);
            if (ended || (int) reply.tokens.size() >= max_tokens) return;
            llama_memory_seq_rm(llama_get_memory(context), 0, past, -1);
            if (draft_context) llama_memory_seq_rm(llama_get_memory(draft_context), 0, past, -1);
        }
    }

    json answer(const json & request) {
        const std::string kind = request.at("drafter");
        const std::vector<llama_token> prompt = request.at("prompt");
        const int max_tokens = request.at("max_tokens");
        const bool ignore_eos = request.at("ignore_eos");
        if (prompt.empty()) throw std::runtime_error("the request has an empty prompt");
        if (max_tokens < 1) throw std::runtime_error("max_tokens must be at least 1");
        auto * spec = kind == "none" ? nullptr : speculator(kind, request.at("draft_tokens"));
        clear();
        peak_memory_bytes();
        Reply reply;
        if (spec) {
            speculative(reply, spec, prompt, max_tokens, ignore_eos);
        } else {
            plain(reply, prompt, max_tokens, ignore_eos);
        }
        const uint64_t total_ns = reply.now_ns();
        return {
            { "tokens", reply.tokens }, { "total_ns", total_ns }, { "commits", reply.commits },
            { "rounds", reply.rounds }, { "peak_memory_bytes", peak_memory_bytes() },
        };
    }

    json hello() const {
        char description[128];
        llama_model_desc(target->model(), description, sizeof(description));
        const std::string version = std::string("llama.cpp ") + PEER_VERSION;
        return {
            { "version", version }, { "threads", llama_n_threads(context) },
            { "weights", description },
        };
    }
};

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    // Standard output is reserved for the protocol.
    llama_log_set(quiet, nullptr);
    common_log_set_verbosity_thold(-1);
    Peer peer;
    try {
        peer.load(argc, argv);
        std::cout << peer.hello().dump() << std::endl;
    } catch (const std::exception & error) {
        std::cerr << "llama_peer: " << error.what() << std::endl;
        return 1;
    }
    for (std::string line; std::getline(std::cin, line);) {
        json reply;
        try {
            reply = peer.answer(json::parse(line));
        } catch (const std::exception & error) {
            reply = { { "tokens", json::array() }, { "total_ns", 0 }, { "commits", json::array() },
                      { "error", error.what() } };
        }
        std::cout << reply.dump() << std::endl;
    }
    return 0;
}
