// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/reference.h"

#include <memory>

namespace nibble::cli {
namespace {

using Verbs = std::vector<std::pair<std::string, const CLI::App*>>;  // "eval ppl" and its parser

void Collect(const CLI::App& app, const std::string& before, Verbs& verbs) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = before + verb->get_name();
    verbs.emplace_back(name, verb);
    Collect(*verb, name + " ", verbs);
  }
}

Verbs VerbsOf(const CLI::App& app) {
  Verbs verbs;
  Collect(app, "", verbs);
  return verbs;
}

// "--output", or "-o" where there is no long name; empty for a positional.
std::string NameOf(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames()[0];
  return option.get_snames().empty() ? "" : "-" + option.get_snames()[0];
}

// Values that an option's type or the list in its description names: "{text,json}",
// "none, inputs", "\n  w4a8: ..."; those that are no words are left out.
std::vector<std::string> ValuesOf(const CLI::Option& option) {
  std::vector<std::string> values;
  std::string type = option.get_type_name();
  const std::string& description = option.get_description();
  for (size_t at = description.find("\n  "); at != description.npos;
       at = description.find("\n  ", at + 1)) {
    values.push_back(description.substr(at + 3, description.find(':', at) - at - 3));
  }
  if (const size_t brace = type.find('{'); brace != type.npos) type = type.substr(brace);
  if (type.find(',') == type.npos) return values;
  for (size_t at = 0; at < type.size();) {
    const size_t end = std::min(type.find_first_of("{, }", at), type.size());
    if (end > at) values.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  std::erase_if(values, [](const std::string& value) {
    return !std::ranges::all_of(value, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == ':' || c == '.';
    });
  });
  return values;
}

std::string Words(const CLI::App& verb) {
  std::vector<std::string> words;
  for (const CLI::App* below : verb.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(below->get_name());
  }
  for (const CLI::Option* option : verb.get_options()) {
    if (const std::string name = NameOf(*option); !name.empty()) words.push_back(name);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string OptionLines(const CLI::App& verb, std::string_view group) {
  std::string text;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group() != group) continue;
    const std::string type = option->get_type_name();
    text += fmt::format("  {:<33} {}\n", NameOf(*option) + (type.empty() ? "" : " " + type),
                        option->get_description());
  }
  return text;
}

std::string Recipes(const CLI::App& app) {
  const CLI::App& verb = *app.get_subcommand("quantize");
  return "A recipe is a quantization method as data; `nibble quantize MODEL -o OUT --recipe NAME`\n"
         "runs one, and every field of it is an option. " +
         verb.get_option("--recipe")->get_description() +
         "\n\nFields, which --rule changes for some linears alone:\n" +
         OptionLines(verb, kCommonGroup) + OptionLines(verb, kRareGroup);
}

struct Topic {
  std::string_view name, about;
  std::string (*text)(const CLI::App& app);
};

constexpr const char* kModels =
    "MODEL is a directory with config.json and safetensors, a GGUF file, a checkpoint that\n"
    "`nibble quantize` wrote, or org/name of a model in Hugging Face's cache. `nibble inspect\n"
    "MODEL` shows its formats, what `nibble chat` makes of it, and keys that nothing reads.\n"
    "chat, generate and serve round a float model's weights to 8 bits while they load it\n"
    "(--load-bits) and keep them for the next start (--no-keep).\n";
constexpr const char* kEnvironment =
    "  NIBBLE_ISA        avx2, avx_vnni, avx512, avx512_vbmi or amx: kernels of at most this set\n"
    "  NIBBLE_API_KEY    the key that `nibble serve` asks for\n"
    "  HF_HUB_CACHE      where models of Hugging Face lie; else hub in HF_HOME, or\n"
    "                    huggingface/hub in the cache\n"
    "  XDG_CACHE_HOME    the cache, for weights that were rounded while loading; else ~/.cache\n"
    "  XDG_STATE_HOME    for messages of earlier chats; else ~/.local/state\n";
constexpr const char* kExit =
    "  0     done\n"
    "  1     failed\n"
    "  2     wrong usage\n"
    "  75    stopped by a signal; the same command with --resume goes on\n";

std::string TopicList(const CLI::App&);

constexpr Topic kTopics[] = {
    {"topics", "this list", TopicList},
    {"recipes", "methods of quantization and their fields", Recipes},
    {"models", "what MODEL may be", [](const CLI::App&) -> std::string { return kModels; }},
    {"environment", "variables", [](const CLI::App&) -> std::string { return kEnvironment; }},
    {"exit", "exit codes", [](const CLI::App&) -> std::string { return kExit; }},
    {"man", "the manual page, for man(1)", ManualPage},
};

std::string TopicList(const CLI::App&) {
  std::string text = "nibble help VERB, or one of\n";
  for (const Topic& topic : kTopics) text += fmt::format("  {:<14}{}\n", topic.name, topic.about);
  return text;
}

// Text for troff: nothing in it is a request or an escape.
std::string Troff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

// As it is, line by line.
std::string Block(std::string_view text) {
  return ".nf\n" + Troff(text) + ".fi\n";
}

std::string ManualOptions(const CLI::App& verb) {
  std::string page;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = NameOf(*option), type = option->get_type_name();
    page += ".TP\n.B " + Troff(name.empty() ? option->get_single_name() : name);
    if (!type.empty()) page += " " + Troff(type);
    page += "\n";
    const std::string& text = option->get_description();
    const size_t list = std::min(text.find('\n'), text.size());
    page += Troff(text.substr(0, list)) + "\n";
    if (list < text.size()) page += Block(text.substr(list + 1) + "\n");
  }
  return page;
}

// One case of bash for each option with values, and one for each verb.
std::string BashCases(const CLI::App& app) {
  std::string values, words = fmt::format("    '') words='{}' ;;\n", Words(app));
  for (const auto& [name, verb] : VerbsOf(app)) {
    words += fmt::format("    '{}') words='{}' ;;\n", name, Words(*verb));
    for (const CLI::Option* option : verb->get_options()) {
      const std::vector<std::string> known = ValuesOf(*option);
      if (known.empty()) continue;
      values +=
          fmt::format("    '{} {}') words='{}' ;;\n", name, NameOf(*option), fmt::join(known, " "));
    }
  }
  return "  case \"$verb $before\" in\n" + values +
         "  esac\n"
         "  if [[ -z $words && ( $now == -* || -z $verb || $verb == eval || $verb == bench ) ]]; "
         "then case $verb in\n" +
         words + "  esac; fi\n";
}

std::string BashScript(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const auto& [name, verb] : VerbsOf(app)) verbs.push_back("'" + name + "'");
  return fmt::format(
             "# Completion of nibble, made by `nibble completion`.\n"
             "_nibble() {{\n"
             "  local now=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
             "  local verb='' words='' i\n"
             "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
             "    case \"${{verb:+$verb }}${{COMP_WORDS[i]}}\" in\n"
             "    {}) verb=\"${{verb:+$verb }}${{COMP_WORDS[i]}}\" ;;\n"
             "    esac\n"
             "  done\n",
             fmt::join(verbs, "|")) +
         BashCases(app) +
         "  if [[ -n $words ]]; then mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$now\")\n"
         "  else mapfile -t COMPREPLY < <(compgen -f -- \"$now\"); fi\n"
         "}\n"
         "complete -o filenames -F _nibble nibble\n";
}

std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, text.find('\n'))) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string FishScript(const CLI::App& app) {
  std::string script = "# Completion of nibble, made by `nibble completion`.\n";
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    script += fmt::format("complete -c nibble -n __fish_use_subcommand -a {} -d {}\n",
                          verb->get_name(), Quoted(verb->get_description()));
  }
  for (const auto& [name, verb] : VerbsOf(app)) {
    const std::string last = name.substr(name.rfind(' ') + 1);
    for (const CLI::Option* option : verb->get_options()) {
      if (option->get_lnames().empty()) continue;
      script += fmt::format("complete -c nibble -n '__fish_seen_subcommand_from {}' -l {} -d {}",
                            last, option->get_lnames()[0], Quoted(option->get_description()));
      const std::vector<std::string> values = ValuesOf(*option);
      if (!values.empty()) script += fmt::format(" -x -a '{}'", fmt::join(values, " "));
      script += "\n";
    }
  }
  return script;
}

}  // namespace

void HideRareOptions(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    HideRareOptions(*verb);
    int64_t hidden = 0;
    for (CLI::Option* option : verb->get_options()) {
      if (option->get_group() != kRareGroup) continue;
      option->group("");
      ++hidden;
    }
    if (hidden == 0) continue;
    verb->footer(fmt::format("{}\n{} more fields of recipes: --help-all or `nibble help recipes`.",
                             verb->get_footer(), hidden));
  }
}

std::string TopicText(const CLI::App& app, std::string_view topic) {
  const auto* found = std::ranges::find(kTopics, topic, &Topic::name);
  return found == std::end(kTopics) ? "" : found->text(app);
}

std::string ManualPage(const CLI::App& app) {
  std::string page = fmt::format(
      ".TH NIBBLE 1 \"\" \"nibble {}\"\n.SH NAME\nnibble \\- run large language models in 4 bits\n"
      ".SH SYNOPSIS\n.B nibble\n.I VERB\n[options] [arguments]\n.SH DESCRIPTION\n{}\n",
      app.version().substr(app.version().find(' ') + 1), Troff(app.get_description()));
  for (const auto& [name, verb] : VerbsOf(app)) {
    page += fmt::format(".SH NIBBLE {}\n{}\n{}.PP\n{}", Troff(name), Troff(verb->get_description()),
                        ManualOptions(*verb), Block(verb->get_footer() + "\n"));
  }
  page += ".SH MODELS\n" + Block(kModels);
  page += ".SH ENVIRONMENT\n" + Block(kEnvironment);
  return page + ".SH EXIT STATUS\n" + Block(kExit);
}

std::string CompletionScript(const CLI::App& app, std::string_view shell) {
  if (shell == "fish") return FishScript(app);
  if (shell == "bash") return BashScript(app);
  return "#compdef nibble\nautoload -U +X bashcompinit && bashcompinit\n" + BashScript(app);
}

void AddCompletion(CLI::App& app, Common& common, Run& run) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* verb = AddVerb(app, common, "completion", "Print what completes words in a shell",
                           "nibble completion bash");
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([shell, &app, &run] {
    run = [shell, &app] { fmt::print("{}", CompletionScript(app, *shell)); };
  });
}

}  // namespace nibble::cli
