// SPDX-License-Identifier: Apache-2.0
//
// Continuous batching: which tokens of which requests a step has, and which pages are whose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "options.h"
#include "tokens.h"

namespace engine {

struct Request {
  std::int64_t number, prompt, output;
  std::int64_t known;       ///< tokens that are known: the prompt, and what was generated
  std::int64_t cached = 0;  ///< of these, whose keys and values are in the cache
  std::vector<std::int32_t> pages = {};

  /// All but the last token is in the cache, and that one was generated.
  bool decodes() const { return known == cached + 1 && known > prompt; }
  bool done() const { return known - prompt >= output; }
};

/// What a step has of one request: new tokens, each with a query, behind those in the cache.
struct Share {
  std::size_t slot;  ///< of the running requests
  bool decodes;
  std::vector<Token> tokens;
};

class Scheduler {
 public:
  explicit Scheduler(const Options& options)
      : options_(options), random_(static_cast<std::uint64_t>(options.seed)) {
    for (std::int64_t page = options.pages; page > 0; --page)
      free_.push_back(static_cast<std::int32_t>(page - 1));
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  bool idle() const { return arrived_ == options_.requests && waiting_.empty() && running_.empty(); }
  const Request& request(const Share& share) const { return running_[share.slot]; }
  std::int64_t finished() const { return finished_; }
  std::int64_t preempted() const { return preempted_; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }

  /// The next step's shares, decoding sequences last.
  std::vector<Share> next_step() {
    ++step_;
    arrive();
    std::int64_t budget = options_.budget;
    std::vector<Share> decoding, prompts;
    for (std::size_t slot = 0; slot < running_.size(); ++slot)
      if (running_[slot].decodes() && budget > options_.drafts && make_room(slot, 1 + options_.drafts)) {
        decoding.push_back(drafted(slot));
        budget -= 1 + options_.drafts;
      }
    for (std::size_t slot = 0; slot < running_.size(); ++slot)
      if (!running_[slot].decodes()) take_chunk(slot, budget, prompts);
    while (!waiting_.empty() && budget > 0 && !free_.empty()) {
      running_.push_back(waiting_.front());
      waiting_.pop_front();
      take_chunk(running_.size() - 1, budget, prompts);
    }
    prompts.insert(prompts.end(), decoding.begin(), decoding.end());
    // Where prompts wait for one another's pages, the oldest goes on.
    while (prompts.empty() && running_.size() > 1) {
      preempt_youngest();
      take_chunk(0, budget, prompts);
    }
    return prompts;
  }

  /// The step's tokens are in the cache: drafts up to the first wrong one are accepted, and the last query
  /// behind known tokens says the next token.
  void finish_step(const std::vector<Share>& shares) {
    for (const Share& share : shares) {
      Request& request = running_[share.slot];
      const auto wrong = std::find_if(share.tokens.begin(), share.tokens.end(),
                                      [](const Token& token) { return token.wrong_in_step != 0; });
      request.cached += wrong - share.tokens.begin();
      request.known = std::max(request.known, request.cached);
      if (request.cached == request.known) ++request.known;
    }
    for (const Request& request : running_)
      if (request.done()) free_.insert(free_.end(), request.pages.begin(), request.pages.end()), ++finished_;
    std::erase_if(running_, [](const Request& request) { return request.done(); });
  }

 private:
  std::int64_t up_to(std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most));
  }

  void arrive() {
    for (std::int64_t i = up_to(options_.arrivals + 1) - 1; i > 0 && arrived_ < options_.requests; --i) {
      const std::int64_t prompt = up_to(options_.prompt);
      waiting_.push_back({arrived_++, prompt, up_to(options_.output), prompt});
    }
  }

  /// Pages for so many more tokens; the youngest other request loses its pages where there are none. Requests
  /// that are older than `slot` stay, and those that have a share of the step: both stand before it.
  bool make_room(std::size_t slot, std::int64_t tokens) {
    Request& request = running_[slot];
    const std::int64_t needed = (request.cached + tokens + options_.page_size - 1) / options_.page_size;
    while (static_cast<std::int64_t>(request.pages.size()) < needed) {
      if (free_.empty() && running_.size() == slot + 1) return false;
      if (free_.empty()) preempt_youngest();
      request.pages.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  void preempt_youngest() {
    Request victim = running_.back();
    running_.pop_back();
    free_.insert(free_.end(), victim.pages.begin(), victim.pages.end());
    victim.pages.clear(), victim.cached = 0;
    waiting_.push_front(victim);
    ++preempted_;
  }

  Share drafted(std::size_t slot) {
    const Request& request = running_[slot];
    Share share{slot, true, {{request.number, request.cached}}};
    for (std::int64_t i = 1; i <= options_.drafts; ++i)
      share.tokens.push_back({request.number, request.cached + i, random_() % 3 == 0 ? step_ : 0});
    return share;
  }

  void take_chunk(std::size_t slot, std::int64_t& budget, std::vector<Share>& shares) {
    const Request& request = running_[slot];
    std::int64_t count = std::min({budget, options_.chunk, request.known - request.cached});
    const std::int64_t room =
        (static_cast<std::int64_t>(request.pages.size()) + free_pages()) * options_.page_size -
        request.cached;
    count = std::min(count, room);
    if (count <= 0) return;
    make_room(slot, count);
    Share share{slot, false, {}};
    for (std::int64_t i = 0; i < count; ++i) share.tokens.push_back({request.number, request.cached + i});
    shares.push_back(share);
    budget -= count;
  }

  const Options& options_;
  std::mt19937_64 random_;
  std::deque<Request> waiting_;
  std::vector<Request> running_;  ///< the oldest first
  std::vector<std::int32_t> free_;
  std::int64_t arrived_ = 0, finished_ = 0, preempted_ = 0, step_ = 0;
};

}  // namespace engine
