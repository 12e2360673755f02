#!/bin/sh
# Drives a running `forerun serve` with the editor plugin llama.vim in headless Neovim: a suggestion
# at the cursor, and an instruction for selected lines. The model needs tokens for filling in the
# middle, and a chat template.
#
# Usage: check_llama_vim.sh URL PLUGIN        (PLUGIN: a clone of https://github.com/ggml-org/llama.vim)
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for line in 1 2 3 4 5 6 7 8; do echo "Sentence $line of another story about a dog."; done > "$folder/other.txt"
printf 'Lily went to the garden.\nOnce upon a time,\nThe end.\n' > "$folder/story.txt"
cat > "$folder/check.vim" <<'EOF'
func Marks(space)
  return string(nvim_buf_get_extmarks(0, nvim_create_namespace(a:space), 0, -1, {'details': v:true}))
endfunc
func Check(what, passed, details)
  call chansend(v:stderr, (a:passed ? 'ok: ' : 'failed: ') .. a:what .. ': ' .. a:details .. "\n")
  if !a:passed | cquit | endif
endfunc
func Instruct(timer)
  call timer_start(200, 'Replace', {'repeat': -1})
  call feedkeys("ggV:LlamaInstruct\<CR>Make it sad\<CR>", 'mt')
endfunc
func Replace(timer)
  let marks = Marks('vt_inst')
  if marks !~ 'virt_ready' | return | endif
  call timer_stop(a:timer)
  call cursor(1, 1)
  call feedkeys("\<Tab>", 'm')
  " Meanwhile, the other file becomes extra context.
  call timer_start(3000, 'Type')
endfunc
func Type(timer)
  call Check('instruction', getline(1) !~ '^Lily\|^Once', getline(1))
  call timer_start(200, 'Accept', {'repeat': -1})
  call search('^Once')
  call feedkeys('A there', 'm')
  call feedkeys('', 'x!')
endfunc
func Accept(timer)
  let hint = Marks('vt_fim')
  if hint !~ 'llama_hl_fim_info' | return | endif
  call timer_stop(a:timer)
  call Check('suggestion', hint =~ 'llama_hl_fim_hint' && hint =~ 'r: [1-9].* p: [1-9].* g: [1-9]', hint)
  call feedkeys("\<Tab>", 'm')
  let line = getline('.')
  call timer_start(300, {-> [Check('accepted', search('\V\^' .. line .. '\.', 'nw'), getline(1, '$')->join("\n")), execute('qall!')]})
endfunc
call timer_start(300, 'Instruct')
call timer_start(60000, {-> Check('in time', v:false, Marks('vt_fim') .. Marks('vt_inst'))})
EOF
nvim --headless --clean \
    --cmd "let g:llama_config = {'endpoint_fim': '$1/infill', 'endpoint_inst': '$1/v1/chat/completions'}" \
    --cmd "set noswapfile rtp^=$2" "$folder/other.txt" +"edit $folder/story.txt" +"source $folder/check.vim"
