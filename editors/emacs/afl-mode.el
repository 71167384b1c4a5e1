;;; afl-mode.el --- Major mode for AFL  -*- lexical-binding: t; -*-

;; Package-Requires: ((emacs "29.1"))
;; Keywords: languages

;;; Commentary:

;; Colours, indentation and comments of AFL, the workflow language of Treadle, and its language server for Eglot:
;;
;;   (add-to-list 'load-path "/path/to/treadle/editors/emacs")
;;   (require 'afl-mode)
;;   (add-hook 'afl-mode-hook #'eglot-ensure)
;;
;; The words come from afl-words.el, which is derived from the description of the tokens.

;;; Code:

(require 'afl-words)

(defun afl-mode--keywords (words)
  "Return a regular expression for WORDS where they do not name anything."
  (concat "\\(?:^\\|[^[:alnum:]_.$]\\)\\(" (regexp-opt words) "\\)\\_>\\(?:[ \t]*\\(?:$\\|[^:=.( \t]\\|==\\|=>\\)\\|[ \t]*(\\)"))

(defconst afl-mode-font-lock-keywords
  `((,(afl-mode--keywords (append afl-words-declarations afl-words-controls afl-words-modifiers afl-words-directives))
     1 font-lock-keyword-face)
    (,(afl-mode--keywords afl-words-operators) 1 font-lock-keyword-face)
    (,(regexp-opt afl-words-statements) . font-lock-builtin-face)
    (,(regexp-opt afl-words-constants 'symbols) . font-lock-constant-face)
    (,(concat "[:[][ \t]*" (regexp-opt afl-words-types 'symbols)) 1 font-lock-type-face)
    ("\\_<\\(?:facet\\|workflow\\|schema\\|namespace\\)[ \t]+\\([[:alnum:]_.]+\\)" 1 font-lock-function-name-face)
    ("\\$\\(?:\\.[[:alpha:]_][[:alnum:]_]*\\)*" . font-lock-variable-name-face)
    ("\\([[:alpha:]_][[:alnum:]_]*\\)[ \t]*=[^=>]" 1 font-lock-variable-name-face))
  "Colours of AFL.")

(defvar afl-mode-syntax-table
  (let ((table (make-syntax-table)))
    (modify-syntax-entry ?/ ". 124b" table)
    (modify-syntax-entry ?* ". 23" table)
    (modify-syntax-entry ?\n "> b" table)
    (modify-syntax-entry ?_ "_" table)
    (modify-syntax-entry ?\" "\"" table)
    table)
  "Comments and strings of AFL.")

(defun afl-mode-indent-line ()
  "Indent by the number of open brackets."
  (interactive)
  (let* ((depth (save-excursion (back-to-indentation) (car (syntax-ppss))))
         (closes (save-excursion (back-to-indentation) (looking-at-p "[])}]")))
         (wanted (* 4 (max 0 (if closes (1- depth) depth)))))
    (if (<= (current-column) (current-indentation))
        (indent-line-to wanted)
      (save-excursion (indent-line-to wanted)))))

;;;###autoload
(define-derived-mode afl-mode prog-mode "AFL"
  "Major mode for AFL."
  (setq-local font-lock-defaults '(afl-mode-font-lock-keywords))
  (setq-local comment-start "// ")
  (setq-local comment-end "")
  (setq-local indent-tabs-mode nil)
  (setq-local indent-line-function #'afl-mode-indent-line))

;;;###autoload
(add-to-list 'auto-mode-alist '("\\.afl\\'" . afl-mode))

(defvar eglot-server-programs)
(with-eval-after-load 'eglot
  (add-to-list 'eglot-server-programs '(afl-mode "treadle" "lsp")))

(provide 'afl-mode)
;;; afl-mode.el ends here
