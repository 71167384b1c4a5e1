autocmd BufRead,BufNewFile *.afl setfiletype afl
