// Tokens that depend on line breaks, and the raw Python of scripts. See grammar.js for the meaning of each.
#include "tree_sitter/parser.h"

#include <string.h>

enum Kind { CODE, JOINED, JOINED_EQUALS, OPERAND_END, LINE_END, FIELD_BREAK, NEVER };

static void next(TSLexer *lexer) { lexer->advance(lexer, false); }

static bool is_word(int32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_blank(int32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == 0xFEFF; }

// Read from `{` to the brace that closes it, outside of Python's strings and comments.
static bool code(TSLexer *lexer) {
  if (lexer->lookahead != '{') return false;
  next(lexer);
  int depth = 1;
  while (!lexer->eof(lexer)) {
    int32_t c = lexer->lookahead;
    if (c == '#') {
      while (!lexer->eof(lexer) && lexer->lookahead != '\n') next(lexer);
      continue;
    }
    next(lexer);
    if (c == '"' || c == '\'') {
      // The quote that was read is the first of one or three.
      if (lexer->lookahead == c) {
        next(lexer);
        if (lexer->lookahead != c) continue;  // an empty string
        next(lexer);
        int closing = 0;
        while (closing < 3) {
          if (lexer->eof(lexer)) return false;
          int32_t d = lexer->lookahead;
          next(lexer);
          if (d == '\\' && !lexer->eof(lexer)) next(lexer);
          closing = d == c ? closing + 1 : 0;
        }
      } else {
        while (!lexer->eof(lexer) && lexer->lookahead != '\n') {
          int32_t d = lexer->lookahead;
          next(lexer);
          if (d == c) break;
          if (d == '\\' && !lexer->eof(lexer)) next(lexer);
        }
      }
    } else if (c == '{') {
      depth++;
    } else if (c == '}' && --depth == 0) {
      lexer->mark_end(lexer);
      return true;
    }
  }
  return false;
}

// Return whether a binary operator comes next. It may be read; nothing that was marked changes.
static bool at_operator(TSLexer *lexer, bool slash) {
  if (slash) return true;
  int32_t c = lexer->lookahead;
  if (c == '+' || c == '-' || c == '*' || c == '%' || c == '<' || c == '>' || c == '&' || c == '|') return true;
  if (c == '=' || c == '!') {
    next(lexer);
    return lexer->lookahead == '=';
  }
  char word[12];
  unsigned length = 0;
  while (is_word(lexer->lookahead) && length < sizeof word - 1) {
    word[length++] = (char)lexer->lookahead;
    next(lexer);
  }
  word[length] = 0;
  if (is_word(lexer->lookahead) || lexer->lookahead == '.') return false;
  static const char *const words[] = {"in", "not", "contains", "startsWith", "endsWith"};
  for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcmp(word, words[i])) return true;
  return false;
}

void *tree_sitter_afl_external_scanner_create(void) { return NULL; }
void tree_sitter_afl_external_scanner_destroy(void *payload) { (void)payload; }
unsigned tree_sitter_afl_external_scanner_serialize(void *payload, char *buffer) {
  (void)payload, (void)buffer;
  return 0;
}
void tree_sitter_afl_external_scanner_deserialize(void *payload, const char *buffer, unsigned length) {
  (void)payload, (void)buffer, (void)length;
}

bool tree_sitter_afl_external_scanner_scan(void *payload, TSLexer *lexer, const bool *valid) {
  (void)payload;
  if (valid[CODE] && valid[LINE_END]) return false;  // everything is valid only while recovering from an error
  lexer->mark_end(lexer);
  bool broken = false, slash = false, skip = valid[CODE];
  for (;;) {
    while (is_blank(lexer->lookahead)) {
      broken = broken || lexer->lookahead == '\n';
      lexer->advance(lexer, skip);
    }
    if (lexer->lookahead != '/' || skip) break;
    next(lexer);
    if (lexer->lookahead == '/') {
      while (!lexer->eof(lexer) && lexer->lookahead != '\n') next(lexer);
    } else if (lexer->lookahead == '*') {
      next(lexer);
      for (int32_t last = 0; !lexer->eof(lexer) && !(last == '*' && lexer->lookahead == '/');) {
        last = lexer->lookahead;
        broken = broken || last == '\n';
        next(lexer);
      }
      if (!lexer->eof(lexer)) next(lexer);
    } else {
      slash = true;
      break;
    }
  }
  int32_t c = slash ? '/' : lexer->lookahead;
  bool ended = lexer->eof(lexer) && !slash;
  if (valid[CODE]) {
    lexer->result_symbol = CODE;
    return code(lexer);
  }
  if (valid[LINE_END] && (broken || ended) && c != '{') {
    lexer->result_symbol = LINE_END;
    return true;
  }
  if (valid[FIELD_BREAK] && broken && !ended && c != ',' && c != '}' && c != '?') {
    lexer->result_symbol = FIELD_BREAK;
    return true;
  }
  if (valid[JOINED_EQUALS] && c == '=' && !broken) {
    next(lexer);
    bool equals = lexer->lookahead != '=' && lexer->lookahead != '>';
    lexer->result_symbol = equals ? JOINED_EQUALS : OPERAND_END;
    return equals || valid[OPERAND_END];
  }
  if (valid[OPERAND_END] && c != '[' && !(valid[JOINED] && c == '(')) {
    lexer->result_symbol = OPERAND_END;
    return !broken || !at_operator(lexer, slash);
  }
  if (valid[JOINED] && !broken) {
    lexer->result_symbol = JOINED;
    return true;
  }
  return false;
}
