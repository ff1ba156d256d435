// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/cli/cli.h"
#include "apps/cli/conversation.h"
#include "apps/cli/message_reader.h"
#include "apps/cli/sampling_options.h"
#include "apps/cli/terminal.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "io/atomic_file.h"

namespace nibble::cli {
namespace {

constexpr uint64_t kMaxConversationBytes = 64 << 20;

struct ChatArguments {
  std::string model, system;
  bool no_template = false, no_history = false;
  Loading loading;
  SamplingArguments sampling = {.max_tokens = 1024};
};

// The conversation, reader and file that commands work on.
struct Talk {
  Conversation conversation;
  MessageReader reader;
  std::string file;  // the file that this conversation was saved to or loaded from
};

void Load(Talk& talk, const std::string& path) {
  const Json messages = ParseJson(ReadFile(path, kMaxConversationBytes), path);
  const auto text = [](const Json& message, const char* key) {
    return message.is_object() && message.contains(key) && message[key].is_string();
  };
  const bool whole = messages.is_array() && std::ranges::all_of(messages, [&](const Json& message) {
                       return text(message, "role") && text(message, "content");
                     });
  if (!whole) Fail("{}: not a list of {{\"role\": TEXT, \"content\": TEXT}}", path);
  talk.conversation.SetMessages(messages);
  talk.file = path;
  Note("{} messages loaded\n", messages.size());
}

void Save(Talk& talk, const std::string& path) {
  if (path.empty()) Fail("/save needs a file's name");
  std::error_code error;
  if (path != talk.file && std::filesystem::exists(path, error) &&
      !talk.reader.Confirms(fmt::format("{} exists; write over it?", Printable(path)))) {
    return Note("not saved\n");
  }
  const Json& messages = talk.conversation.messages();
  WriteFileAtomic(path, messages.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  talk.file = path;
  Note("{} messages saved in {}\n", messages.size(), Printable(path));
}

void Reset(Talk& talk, const std::string&) {
  talk.conversation.Reset();
  talk.file.clear();
  Note("begun anew\n");
}

void SetSystem(Talk& talk, const std::string& text) {
  talk.conversation.SetSystem(text);
  Note("{}", text.empty() ? "no system message\n" : "system message set\n");
}

void PrintStats(Talk& talk, const std::string&) {
  const Conversation& conversation = talk.conversation;
  Note("{} messages; {} tokens cached in {}\n", conversation.messages().size(),
       conversation.tokens(), BytesText(static_cast<double>(conversation.cache().bytes())));
}

struct Command {
  std::string_view name, argument, help;
  void (*run)(Talk& talk, const std::string& argument);
};
constexpr Command kCommands[] = {
    {"reset", "", "begin anew", Reset},
    {"system", "TEXT", "what the model is told first; empty for nothing", SetSystem},
    {"save", "FILE", "write the conversation as JSON", Save},
    {"load", "FILE", "go on with a saved one", Load},
    {"stats", "", "tokens and memory in use", PrintStats},
};

void PrintHelp() {
  for (const Command& c : kCommands) {
    Note("{:<14}{}\n", fmt::format("/{} {}", c.name, c.argument), c.help);
  }
  Note(
      "/exit         or Ctrl-D: end; Ctrl-C ends an answer\n"
      "A line that ends with \\ goes on in the next; lines between two \"\"\" are one message.\n");
}

// Runs the command in a message "/name argument"; false ends the program.
bool RunCommand(const std::string& message, Talk& talk) {
  const size_t space = std::min(message.find(' '), message.size());
  const std::string name = message.substr(1, space - 1);
  const std::string argument = message.substr(std::min(space + 1, message.size()));
  if (name == "exit" || name == "quit") return false;
  if (name == "help") return PrintHelp(), true;
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  if (command == std::end(kCommands)) {
    Note("nibble: there is no command /{}; /help lists them\n", Printable(name));
    return true;
  }
  try {
    command->run(talk, argument);
  } catch (const Error& error) {
    Note("nibble: {}\n", error.what());
  }
  return true;
}

std::optional<ChatTemplate> Template(const ChatArguments& a) {
  if (a.no_template) return std::nullopt;
  auto chat_template = ChatTemplate::Load(a.model);
  if (!chat_template) {
    FailUsage("{} has no chat template; pass --no-template to continue plain text", a.model);
  }
  return chat_template;
}

// Asks for an answer and prints it; returns whether there was one.
bool Answer(Conversation& conversation, const std::string& message,
            const SamplingArguments& sampling, const GenerationConfig& config, bool json) {
  const GenerateOptions options = sampling.Options(config, true);
  TextOutput output(&conversation.tokenizer(), !json, sampling.stops, true);
  const auto answer = conversation.Ask(message, options, output);
  if (!answer) return false;
  if (json) {
    PrintJson(GenerationJson(output, answer->prompt_tokens, answer->generation, options));
    FlushOutput();
  } else {
    PrintSpeed(answer->prompt_tokens, answer->generation, options);
  }
  return true;
}

void RunChat(const ChatArguments& a, const Common& common) {
  a.sampling.Check();
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  auto chat_template = Template(a);
  const auto model = cli::Load(a.model, common, false, a.loading);
  const auto config = LoadGenerationConfig(a.model, model->network().config_json);
  Talk talk{.conversation = {*model, tokenizer, std::move(chat_template)},
            .reader = MessageReader(a.no_history ? "" : MessageHistory::DefaultPath())};
  talk.conversation.SetSystem(a.system);
  const bool terminal = talk.reader.terminal();
  UseUtf8();
  int64_t unanswered = 0;
  if (terminal) Note("/help lists commands, Ctrl-D ends.\n");
  const auto forget = [&] {  // also a Ctrl-C between an answer and the editor's first key
    if (terminal) ForgetCtrlC();
  };
  while (!Interrupted()) {
    const auto message = talk.reader.Next();
    forget();
    if (!message) break;
    if (message->empty()) continue;
    if (message->starts_with('/')) {
      if (!RunCommand(*message, talk)) break;
      continue;
    }
    unanswered += Answer(talk.conversation, *message, a.sampling, config, common.json) ? 0 : 1;
    forget();
  }
  if (unanswered > 0 && !terminal) Fail("{} messages had no answer", unanswered);
}

}  // namespace

void AddChat(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<ChatArguments>();
  CLI::App* verb = AddVerb(app, common, "chat", "Talk to a model",
                           "nibble chat llama.gguf\n"
                           "  nibble chat llama-w4a4kv4 --system \"Answer briefly.\"");
  AddModel(*verb, a->model)->required();
  verb->add_option("--system", a->system, "System message");
  verb->add_flag("--no-template", a->no_template,
                 "Plain text instead of the model's chat template");
  verb->add_flag("--no-history", a->no_history,
                 "Neither keep messages written in a terminal for the next session, in "
                 "nibble/messages.jsonl of the user's state directory, nor show kept ones");
  AddLoading(*verb, a->loading);
  AddSampling(*verb, a->sampling);
  verb->callback([a, &common, &run] { run = [a, &common] { RunChat(*a, common); }; });
}

}  // namespace nibble::cli
