# fish completion for pycrictl, for fish 3.1 and later.

# The program prints a candidate a line, with a description after a tab, and then a directive of
# cobra's: 4 for no files.
function __pycrictl
    set -l words (commandline -opc)
    set -l program pycrictl
    string match -q '*/*' -- $words[1]; and set program $words[1]
    type -q -- $program; or return
    set -l word (commandline -ct)
    set word (string unescape -- $word; or string replace -r '^["\']' '' -- $word)
    set -l answer ($program __complete $words[2..-1] "$word" 2>/dev/null)
    string match -qr '^:' -- $answer[-1]; or return
    set -q answer[2]; and printf '%s\n' $answer[1..-2]
    test $answer[-1] = :4; and return
    set -l before (string match -r '^-.*?=' -- $word)
    set word (string replace -r '^-.*?=' '' -- $word)
    set -l scheme (string match -r '^unix://' -- $word)
    set -l beginning (string replace -r '^unix://' '' -- $word | string replace -r '^~/' $HOME/)
    for file in $beginning*
        test -d $file; and set file $file/
        string match -q '~/*' -- $word; and set file (string replace $HOME/ '~/' -- $file)
        printf '%s\n' "$before$scheme$file"
    end
end

complete -c pycrictl -f -a '(__pycrictl)'
