// SPDX-License-Identifier: Apache-2.0
// Requests that wait, in the order in which they may begin: the client that was served least comes
// first (virtual token counters: Sheng et al. 2024, "Fairness in Serving Large Language Models",
// algorithm 2), and one client's requests in their order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace nibble {

template <typename Item>
class FairQueue {
 public:
  static constexpr double kPromptWeight = 1, kWrittenWeight = 2;  // section 4.1

  void Push(const std::string& client, std::unique_ptr<Item> item) {
    Join(client).waiting.push_back(std::move(item));
    ++size_;
  }
  void PushFront(const std::string& client, std::unique_ptr<Item> item) {
    Join(client).waiting.push_front(std::move(item));
    ++size_;
  }
  int64_t size() const { return size_; }

  // The item whose turn it is, or null.
  Item* Next() {
    const auto turn = Turn();
    return turn == clients_.end() ? nullptr : turn->second.waiting.front().get();
  }
  // Takes Next; its client counts as being served until Leave.
  std::unique_ptr<Item> Pop() {
    Client& client = Turn()->second;
    std::unique_ptr<Item> item = std::move(client.waiting.front());
    client.waiting.pop_front();
    ++client.served;
    --size_;
    return item;
  }
  void Charge(const std::string& client, double tokens) { clients_.at(client).counter += tokens; }
  void Leave(const std::string& client) {
    --clients_.at(client).served;
    Forget(client);
  }
  // Takes out the items for which `gone` returns true.
  void RemoveIf(const std::function<bool(Item&)>& gone) {
    for (auto it = clients_.begin(); it != clients_.end();) {
      Client& client = it->second;
      size_ -= static_cast<int64_t>(
          std::erase_if(client.waiting, [&](const auto& item) { return gone(*item); }));
      const bool idle = client.waiting.empty() && client.served == 0;
      it = idle ? clients_.erase(it) : std::next(it);
    }
  }

 private:
  struct Client {
    double counter = 0;  // tokens it got, weighted
    std::deque<std::unique_ptr<Item>> waiting;
    int64_t served = 0;  // requests that run
  };
  using Clients = std::map<std::string, Client>;

  // A client that was away has saved nothing up: a newcomer starts where the least served one is.
  Client& Join(const std::string& name) {
    const auto found = clients_.find(name);
    if (found != clients_.end()) return found->second;
    double min = 0;
    bool first = true;
    for (const auto& [unused, client] : clients_) {
      min = first ? client.counter : std::min(min, client.counter);
      first = false;
    }
    Client& client = clients_[name];
    client.counter = min;
    return client;
  }
  typename Clients::iterator Turn() {
    auto turn = clients_.end();
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      if (it->second.waiting.empty()) continue;
      if (turn == clients_.end() || it->second.counter < turn->second.counter) turn = it;
    }
    return turn;
  }
  void Forget(const std::string& name) {
    const Client& client = clients_.at(name);
    if (client.waiting.empty() && client.served == 0) clients_.erase(name);
  }

  Clients clients_;
  int64_t size_ = 0;
};

}  // namespace nibble
